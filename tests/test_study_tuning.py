"""Tuning: a grid on seeds and text that no comparison sees, a choice by the lowest mean, frozen before the runs."""

import io
import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from fabricated import write_run
from rich.console import Console

from depthroute import config, runs
from depthroute.cli import study as commands
from depthroute.errors import ConfigError, RunError
from depthroute.study import tuning
from depthroute.study.conduct import conduct
from depthroute.study.execute import Outcome
from depthroute.study.lock import held
from depthroute.study.plan import Study, read_study
from depthroute.study.progress import last_step
from depthroute.study.state import record_failure
from depthroute.study.tuning import TUNING, freeze, planned, tuning_runs
from depthroute.train.loop import train
from studies import command, environment, raw_study, write_study, write_text

RATE, QUERIES = "optimizer.matrices.learning_rate", "optimizer.queries"


def raw_tuned(folder: Path) -> dict[str, Any]:
    """rd alone is tuned, over a rate that works and one that cannot."""
    raw = raw_study(folder / "text.txt")
    raw["base"] |= {"tokens": 10240, "clip": None}
    raw["base"]["data"]["held_out"] = {
        "tuning": {"files": [str(folder / "other.txt")], "split": "document", "validation": 0.2}
    }
    grid = {RATE: [0.02, 1e18]}
    raw["tuning"] = {"seeds": [7], "tokens": 32768, "held_out": "tuning", "grid": grid, "skip": ["prenorm"]}
    return raw


def fabricated(tmp_path: Path) -> Study:
    raw = raw_tuned(tmp_path)
    raw["tuning"] = {
        "seeds": [7, 8],
        "tokens": 4096,
        "held_out": "tuning",
        "grid": {RATE: [0.01, 0.02, 0.04]},
        "arms": {"rd": {QUERIES: [0.001, 0.003]}},
    }
    return Study.parse(raw)


def test_a_tuning_run_is_the_arm_with_its_values_fewer_tokens_and_one_judgement(tmp_path: Path) -> None:
    raw = raw_tuned(tmp_path)
    raw["base"]["evaluation"] = {"milestones": [5120], "tokens": 2048}
    raw["arms"]["prenorm"] = {"tokens": 8192}
    raw["tuning"] |= {"skip": [], "tokens": 4096}
    raw["cross"] = {"depth": {"two": {"model.layers": 2}, "three": {"model.layers": 3}}}
    plan = tuning_runs(Study.parse(raw))
    assert len(plan) == 2 * 2 * 2
    assert {run.config.tokens for run in plan} == {4096}
    assert {run.config.seed for run in plan} == {7}
    assert {run.config.evaluation.milestones for run in plan} == {()}
    assert {run.config.optimizer.matrices.learning_rate for run in plan} == {0.02, 1e18}
    assert len({run.directory(tmp_path) for run in plan}) == 8
    assert plan[0].place.parts[:3] == ("tuning", "prenorm", "depth=two")
    assert plan[0].name == "prenorm depth=two with learning_rate=0.02 seed 7"


def test_the_lowest_mean_is_selected_the_first_of_equals_and_never_a_failed_point(tmp_path: Path) -> None:
    study = fabricated(tmp_path)
    plan = tuning_runs(study)
    assert len(plan) == 3 * 2 + 6 * 2
    nll = {0.01: 3.0, 0.02: 2.5, 0.04: 1.0}
    for run in plan:
        value = nll[run.config.optimizer.matrices.learning_rate] + (0.1 if run.seed == 7 else -0.1)
        if run.config.optimizer.matrices.learning_rate == 0.04 and run.seed == 8:
            run.log(tmp_path).parent.mkdir(parents=True, exist_ok=True)
            record_failure(run, tmp_path, 2, ["error: runs/x: step 3: nll is nan; stopped without updating; lower"])
        else:
            write_run(run, tmp_path, {"tuning": value, "validation": -value}.__getitem__, ("tuning", "validation"))
    frozen = freeze(study, tmp_path)
    assert frozen == json.loads((tmp_path / TUNING).read_text())["cells"] == tuning.read(tmp_path)
    prenorm, rd = frozen["prenorm"], frozen["rd"]
    assert prenorm["grid"] == {RATE: [0.01, 0.02, 0.04]}
    assert prenorm["selected"] == {RATE: 0.02}
    assert (prenorm["on_edge"], prenorm["tuned"]) == ([], True)
    assert [point["mean"] for point in prenorm["points"]] == [3.0, 2.5, None]
    assert prenorm["points"][2]["by_seed"] == {"7": 1.1, "8": None}
    assert "nll is nan" in prenorm["points"][2]["failed"]
    assert rd["selected"] == {RATE: 0.02, QUERIES: 0.001}, "the first of two equal points"
    assert rd["on_edge"] == [QUERIES]
    final = {run.arm: run.config.optimizer for run in planned(study, tmp_path)}
    assert final["rd"].queries == 0.001
    assert {arm: optimizer.matrices.learning_rate for arm, optimizer in final.items()} == {"prenorm": 0.02, "rd": 0.02}
    assert freeze(study, tmp_path) == frozen, "what is frozen stays"


def test_an_arm_of_which_every_point_diverged_stops_the_study(tmp_path: Path) -> None:
    study = fabricated(tmp_path)
    for run in tuning_runs(study):
        run.log(tmp_path).parent.mkdir(parents=True, exist_ok=True)
        record_failure(run, tmp_path, 2, ["error: step 3: nll is nan; stopped without updating"])
    with pytest.raises(RunError, match=r"tuning of prenorm: every point diverged \(.*nll is nan.*amend its grid"):
        freeze(study, tmp_path)
    assert not (tmp_path / TUNING).exists()


def test_only_numbers_have_an_edge() -> None:
    assert tuning.on_edge(0.01, [0.02, 0.01, 0.04])
    assert not tuning.on_edge(0.02, [0.02, 0.01, 0.04])
    assert tuning.on_edge(0.02, [0.02])
    assert not tuning.on_edge("muon", ["muon", "adamw"])
    assert not tuning.on_edge(True, [True, False])


def test_damaged_tuning_is_named(tmp_path: Path) -> None:
    for content in ('{"rd": {}}', "{", "[]", '{"format": 1, "digest": null}'):
        (tmp_path / TUNING).write_text(content)
        with pytest.raises(RunError, match=r"tuning\.json: (damaged|was edited).*; delete it and run the study again"):
            tuning.read(tmp_path)


def test_an_edited_choice_is_refused_and_made_anew_from_the_tuning_runs_once_deleted(tmp_path: Path) -> None:
    study = fabricated(tmp_path)
    for run in tuning_runs(study):
        write_run(run, tmp_path, lambda _: 2.0, ("tuning",))
    chosen = freeze(study, tmp_path)
    text = (tmp_path / TUNING).read_text()
    edited = json.loads(text)
    edited["cells"]["rd"]["selected"][QUERIES] = 0.003
    (tmp_path / TUNING).write_text(json.dumps(edited))
    for use in (lambda: planned(study, tmp_path), lambda: freeze(study, tmp_path)):
        with pytest.raises(RunError, match=r"tuning\.json: was edited after it was written .*; delete it and run the"):
            use()
    (tmp_path / TUNING).unlink()
    assert freeze(study, tmp_path) == chosen
    assert (tmp_path / TUNING).read_text() == text


def test_a_killed_tuning_goes_on_to_the_same_bits_freezes_its_choice_and_the_runs_take_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = write_text(tmp_path).read_text()
    (tmp_path / "other.txt").write_text(text[::-1])
    raw = raw_tuned(tmp_path)
    study, place = write_study(tmp_path, raw), tmp_path / "place"
    good, wild = tuning_runs(read_study(study))
    process = subprocess.Popen(
        command("study", "run", study, "--dir", place, "--data", tmp_path / "data"),
        cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while (last_step(good.directory(place)) or {"step": 0})["step"] < 8:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    while held(place):
        assert time.monotonic() < deadline, "workers go on without their study"
        time.sleep(0.05)
    assert not (place / TUNING).exists()
    assert not (place / "runs").exists()

    said = io.StringIO()
    written = study.read_text()
    results, outcome = conduct(read_study(study), written, place, tmp_path / "data", Console(file=said, width=200))
    assert outcome == Outcome([], 0)
    assert "tuning: rd takes {'optimizer.matrices.learning_rate': 0.02}; on the edge of its grid" in said.getvalue()
    train(good.config, tmp_path / "unbroken", tmp_path / "data", resume=False)
    model = "model/model.safetensors"
    assert (good.directory(place) / model).read_bytes() == (tmp_path / "unbroken" / model).read_bytes()
    frozen = tuning.read(place)
    assert frozen["prenorm"] == {"grid": {}, "points": [], "selected": {}, "on_edge": [], "tuned": False} | {
        "digest": frozen["prenorm"]["digest"]
    }
    nll = runs.final_evaluation(tmp_path / "unbroken")["tuning"]["nll"]
    assert [point["by_seed"] for point in frozen["rd"]["points"]] == [{"7": nll}, {"7": None}]
    assert "nll is nan" in frozen["rd"]["points"][1]["failed"]
    assert len(results["runs"]) == 4
    assert results["missing"] == []

    commands.status(place)
    assert "tuning: 1 of 2 complete, 1 diverged\n" in capsys.readouterr().out
    longer = write_study(
        tmp_path, raw | {"tuning": raw["tuning"] | {"grid": {RATE: [0.02, 0.04, 1e18]}}}, "longer.yaml"
    )
    with pytest.raises(
        RunError,
        match=r"runs/rd/3: began before the tuning that is asked for now \(adds tuning.*0\.04\); choose another --dir",
    ):
        commands.amend(longer, "The best rate lies on the edge.", place, tmp_path / "data")
    for run in planned(read_study(study), place):
        if run.arm == "rd":
            runs.remove_directory(run.directory(place))
    commands.amend(longer, "The best rate lies on the edge.", place, tmp_path / "data")
    assert "adds tuning.grid.optimizer.matrices.learning_rate 0.04" in capsys.readouterr().out
    assert list(tuning.read(place)) == ["prenorm"], "the choice of rd is made again, with one point more"
    assert wild.failure_file(place).exists()


@pytest.mark.parametrize(
    ("held_out", "manifest", "message"),
    [
        (("validation",), {}, "was not evaluated on 'tuning', on which values are chosen; delete it and run the study"),
        (("tuning",), {"config_digest": "f00"}, "was trained with another configuration than the study's; delete that"),
        (("tuning",), {"versions": 7}, r"manifest\.json: damaged \(versions is 7\); delete .* and run the study again"),
    ],
)
def test_a_tuning_run_of_another_study_has_no_say(
    tmp_path: Path, held_out: tuple[str, ...], manifest: dict[str, Any], message: str
) -> None:
    study = fabricated(tmp_path)
    first, *others = tuning_runs(study)
    write_run(first, tmp_path, lambda _: 2.0, held_out, **manifest)
    for run in others:
        write_run(run, tmp_path, lambda _: 2.0, ("tuning",))
    with pytest.raises(RunError, match=message):
        freeze(study, tmp_path)
    assert not (tmp_path / TUNING).exists()


@pytest.mark.parametrize("judged", ["contrast", "crossing"])
def test_values_are_never_chosen_on_a_document_that_is_judged_on(tmp_path: Path, judged: str) -> None:
    raw = raw_tuned(tmp_path)
    text = write_text(tmp_path).read_text()
    (tmp_path / "other.txt").write_text(text[::-1])
    raw["base"]["data"]["held_out"]["tuning"] = {
        "files": [str(tmp_path / "text.txt"), str(tmp_path / "other.txt")],
        "split": "document",
        "validation": 0.9,
    }
    if judged == "crossing":  # and every contrast elsewhere
        (tmp_path / "third.txt").write_text(text.replace("e", "a"))
        third = {"files": [str(tmp_path / "third.txt")], "split": "document", "validation": 1.0}
        raw["base"]["data"]["held_out"]["third"] = third
        raw["contrasts"] = [{"arm": "rd", "against": "prenorm", "held_out": "third"}]
        raw["cross"] = {"eps": {"small": {"model.norm_eps": 1.0e-7}, "large": {"model.norm_eps": 1.0e-5}}}
        raw["crossings"] = [{"factor": "eps"}]
    study = write_study(tmp_path, raw)
    shared = r"tuning\.held_out: \d+ of the \d+ documents of 'tuning' stand in 'validation' too"
    with pytest.raises(ConfigError, match=f"{shared}, on which a {judged} is judged"):
        commands.plan(study, tmp_path / "place", tmp_path / "data")
    assert not (tmp_path / "place/prereg.json").exists()


def test_an_amendment_of_an_arm_that_has_begun_names_the_key_that_changed(tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text(write_text(tmp_path).read_text()[::-1])
    raw, place = raw_tuned(tmp_path), tmp_path / "place"
    study = write_study(tmp_path, raw)
    commands.plan(study, place, tmp_path / "data")
    begun = next(run for run in planned(read_study(study), place) if run.arm == "rd")
    begun.directory(place).mkdir(parents=True)
    (begun.directory(place) / runs.CONFIG).write_text(config.dump(begun.config))
    raw["question"], raw["arms"]["rd"]["clip"] = "And now?", 2.0
    study = write_study(tmp_path, raw)
    with pytest.raises(
        RunError, match=r"runs/rd/3: began before .* \(clip of arm rd was nothing, is now 2\.0\); choose"
    ):
        commands.amend(study, "Another clip.", place, tmp_path / "data")


def test_frozen_values_that_were_edited_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text(write_text(tmp_path).read_text()[::-1])
    study = write_study(tmp_path, raw_tuned(tmp_path))
    commands.plan(study, tmp_path / "place", tmp_path / "data")
    entry = {"grid": {}, "points": [], "selected": {RATE: 0.5}, "on_edge": [], "tuned": True, "digest": "f00"}
    tuning.write({"rd": entry}, tmp_path / "place")
    with pytest.raises(RunError, match=r"tuning\.json: rd was not chosen as the plan says; delete it and run"):
        commands.run(study, tmp_path / "place", tmp_path / "data", None)
    with pytest.raises(ConfigError, match="no such file"):
        commands.status(tmp_path / "data")
