"""Plans: what is written down before the first run, what is refused later, and what an amendment records."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from depthroute import runs
from depthroute.cli import study as commands
from depthroute.data import Dataset, build
from depthroute.errors import ConfigError, RunError
from depthroute.ops import resolve
from depthroute.study import prereg
from depthroute.study.plan import Study, plan_runs
from depthroute.study.prereg import PREREG
from depthroute.study.table import render
from studies import again, changed_study, raw_study, trained_folder, write_study, write_text

CROSS = {"width": {"a": None, "b": {"model.width": 48}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    return trained_folder(tmp_path_factory, request)


def crossed(text: Path) -> dict[str, Any]:
    return {
        **raw_study(text),
        "cross": {"depth": {"two": {"model.layers": 2}, "three": {"model.layers": 3, "tokens": 5120}}},
        "contrasts": [
            {"arm": "rd", "primary": True, "margin": 0.01},
            {"arm": "rd", "at": {"depth": "two"}, "held_out": "more"},
        ],
        "power": {"sd": 0.01},
        "tuning": {"seeds": [7], "tokens": 2560, "held_out": "tuning", "grid": {"optimizer.queries": [0.001, 0.003]}},
        "replicates": [{"arm": "rd", "seed": 3}],
    }


def test_a_plan_holds_all_that_decides_and_is_shown_with_its_power(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = crossed(write_text(tmp_path))
    text = (tmp_path / "text.txt").read_text()
    raw["base"]["data"]["held_out"] = {}
    for name, words in (("tuning", text[::-1]), ("more", text.upper())):
        (tmp_path / f"{name}.txt").write_text(words)
        held = {"files": [str(tmp_path / f"{name}.txt")], "split": "document", "validation": 0.2}
        raw["base"]["data"]["held_out"][name] = held
    raw["base"]["evaluation"] = {"tokens": 2048, "every": 2560}
    study = write_study(tmp_path, raw)
    commands.plan(study, tmp_path / "place", tmp_path / "data", measure=True)
    printed = capsys.readouterr().out
    plan = prereg.read(tmp_path / "place")
    data = Dataset.open(build(plan_runs(Study.parse(raw))[0].config.data, tmp_path / "data"))
    assert (plan["data_digest"], plan["tokenizer_digest"]) == (data.digest, data.tokenizer_digest)
    assert plan["question"] == raw["question"]
    assert (plan["arms"], plan["seeds"], plan["baseline"]) == (["prenorm", "rd"], [3, 1], "prenorm")
    assert plan["cross"] == {"depth": ["two", "three"]}
    cells = ["prenorm|depth=two", "rd|depth=two", "prenorm|depth=three", "rd|depth=three"]
    assert list(plan["config_digests"]) == cells
    assert len(set(plan["config_digests"].values())) == 4
    assert plan["tokens"] == dict(zip(cells, [30720, 30720, 5120, 5120], strict=True))
    assert plan["milestones"]["rd|depth=three"] == [2560, 5120]
    assert plan["held_out"] == ["validation", "tuning", "more"]
    both = {"arm": "rd", "against": "prenorm", "held_out": "validation", "primary": True, "margin": 0.01}
    assert plan["contrasts"] == [
        {**both, "at": {"depth": "two"}},
        {**both, "at": {"depth": "three"}},
        {**both, "held_out": "more", "primary": False, "margin": None, "at": {"depth": "two"}},
    ]
    assert "Holm over the 2 primary contrasts" in plan["decision_rule"]
    assert "else equivalent, if it has a margin, its t interval does not exclude 0, and" in plan["decision_rule"]
    assert "Equivalence tests are not corrected for the number of contrasts" in plan["decision_rule"]
    assert "called nothing but equivalent or identical" in plan["decision_rule"]
    assert plan["impl"] == resolve("auto")
    assert plan["versions"]["torch"].startswith("2.")
    assert plan["tuning"]["grids"]["rd"] == {"optimizer.queries": [0.001, 0.003]}
    assert plan["power"]["smallest_exact_p"] == 0.5
    assert plan["amendments"] == []

    text = " ".join(printed.split())
    for words in (
        "prenorm (baseline), rd",
        "rd depth=two against prenorm on validation, primary, margin 0.01",
        "2 pairs with a deviation of 0.01 detect a difference of",
        "if there is no difference, equivalence at margin 0.01 is shown",
        "the exact sign-flip test of 2 pairs gives no p below 0.5, so never 0.05",
        "8 of tuning, 8 of 4 configurations, 2 replicates",
        plan["digest"],
    ):
        assert words in text
    assert re.search(r"time about \d+.* left with 2 at a time .* tokens/s each", text)
    assert not (tmp_path / "place/runs").exists()


def test_a_plan_may_be_made_anew_until_something_has_run(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    study = changed_study(folder, place, dict)
    commands.plan(study, place, folder / "data")
    first = prereg.read(place)
    commands.plan(study, place, folder / "data")
    assert prereg.read(place) == first
    study = changed_study(folder, place, lambda raw: raw.update(level=0.01))
    with pytest.raises(
        RunError, match=r"significance.level was 0.05, is now 0.01; nothing has run yet, so plan anew by"
    ):
        again(folder, place, lambda raw: raw.update(level=0.01))
    commands.plan(study, place, folder / "data")
    assert prereg.read(place)["level"] == 0.01
    shutil.copytree(folder / "whole/runs/rd", place / "runs/rd")
    study = changed_study(folder, place, lambda raw: raw.update(level=0.1))
    with pytest.raises(
        RunError, match=r"significance.level was 0.01, is now 0.1; record it by: depthroute study amend"
    ):
        commands.plan(study, place, folder / "data")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda raw: raw.update(question="And now?"), "question was 'Does a read from depth help here?', is now 'And"),
        (lambda raw: raw.update(seeds=[3, 2]), "removes seed 1"),
        (lambda raw: raw.update(seeds=[3, 1, 2]), "adds seed 2"),
        (lambda raw: raw["arms"].update(third={"clip": 0.5}), "adds arm third"),
        (lambda raw: raw.update(baseline="rd"), "baseline was 'prenorm', is now 'rd'"),
        (
            lambda raw: raw.update(contrasts=[{"arm": "rd", "margin": 0.1}]),
            "removes contrast rd against prenorm on val",
        ),
        (lambda raw: raw.update(power={"sd": 0.1}), "power was nothing, is now {'sd': 0.1}"),
        (lambda raw: raw.update(replicates=[{"arm": "rd", "seed": 1}]), "adds replicate of rd seed 1"),
        (lambda raw: raw.update(cross=CROSS), "cross.width was nothing, is now {'level': ['a', 'b']}"),
        (lambda raw: raw["base"].update(batch=4), "batch was 8, is now 4"),
        (lambda raw: raw["arms"]["rd"].update(clip=2.0), "clip of arm rd was 1.0, is now 2.0"),
    ],
)
def test_what_differs_from_the_plan_is_refused_with_the_first_difference(
    folder: Path, change: Callable[[dict[str, Any]], object], line: str
) -> None:
    place = folder / "whole"
    before = (place / PREREG).read_bytes(), (place / "study.yaml").read_bytes(), (place / "results.json").read_bytes()
    with pytest.raises(RunError) as caught:
        again(folder, place, change)
    assert re.search(rf"^{place}: differs from the plan of [-0-9]+ [:0-9]+: {re.escape(line)}", str(caught.value))
    assert f'record it by: depthroute study amend whole.yaml --dir {place} --why "..."' in str(caught.value)
    assert "\n" not in str(caught.value)
    after = (place / PREREG).read_bytes(), (place / "study.yaml").read_bytes(), (place / "results.json").read_bytes()
    assert after == before


def test_an_edited_or_damaged_plan_is_refused(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "edited"
    shutil.copytree(folder / "whole", place)
    plan = json.loads((place / PREREG).read_text())
    (place / PREREG).write_text(json.dumps({**plan, "level": 0.2}))
    with pytest.raises(RunError, match=r"prereg\.json: was edited after it was written"):
        again(folder, place)
    (place / PREREG).write_text(json.dumps({**plan, "format": 9}))
    with pytest.raises(RunError, match="has format 9, this version reads 1"):
        again(folder, place)
    (place / PREREG).write_text("{")
    with pytest.raises(RunError, match="damaged; restore the file"):
        again(folder, place)


def test_runs_are_not_added_under_other_versions_or_data_than_planned(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "moved"
    shutil.copytree(folder / "whole", place)
    plan = prereg.read(place)
    prereg.write(prereg.sealed({**plan, "versions": {**plan["versions"], "torch": "1.0"}}), place)
    results, _ = again(folder, place)
    assert len(results["flagged"]) == 4, "all runs are there, so nothing is refused; none is as planned"
    shutil.rmtree(place / "runs/rd/1")
    with pytest.raises(RunError, match=r"versions\.torch was '1\.0', is now '2\..*; record it by"):
        again(folder, place)


def test_changed_text_after_runs_is_to_be_restored_and_no_amendment_disowns_the_runs(
    folder: Path, tmp_path: Path
) -> None:
    place = tmp_path / "text"
    shutil.copytree(folder / "whole", place)
    prereg.write(prereg.sealed({**prereg.read(place), "data_digest": "f0"}), place)
    study = changed_study(folder, place, dict)
    with pytest.raises(RunError, match=r"data_digest was 'f0'.*would disown 4 finished runs; restore the text that"):
        commands.amend(study, "Other text.", place, folder / "data")
    shutil.rmtree(place / "runs/rd/1")
    with pytest.raises(RunError, match=r"restore the text that the runs were trained on, or choose another --dir for"):
        again(folder, place)


def test_an_amendment_to_other_versions_says_how_many_runs_it_disowns(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "versions"
    shutil.copytree(folder / "whole", place)
    old = {**prereg.read(place)["versions"], "torch": "1.0"}
    prereg.write(prereg.sealed({**prereg.read(place), "versions": old}), place)
    for run in ("prenorm/1", "rd/1", "rd/3"):
        path = place / "runs" / run / runs.MANIFEST
        path.write_text(json.dumps({**json.loads(path.read_text()), "versions": old}))
    commands.amend(changed_study(folder, place, dict), "A new machine.", place, folder / "data")
    assert f"warning: {place}: 3 finished runs will be flagged" in " ".join(capsys.readouterr().err.split())
    commands.run(changed_study(folder, place, dict), place, folder / "data", None)
    assert "warning: 3 finished runs were left out" in capsys.readouterr().err


def test_a_full_disk_is_told_with_the_name_of_the_plan(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "full"
    place.mkdir()
    (place / f".{PREREG}.partial").symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"full/prereg\.json: cannot be written \(No space left on device\)"):
        commands.plan(changed_study(folder, place, dict), place, folder / "data")
    assert not (place / PREREG).exists()


def test_an_amendment_is_dated_and_keeps_its_reason_and_what_came_before(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "amended"
    shutil.copytree(folder / "whole", place)
    old = prereg.read(place)

    def change(raw: dict[str, Any]) -> None:
        raw.update(question="And now?", contrasts=[{"arm": "rd", "primary": True, "margin": 0.5}])

    study = changed_study(folder, place, change)
    with pytest.raises(ConfigError, match="--why: say in a few words"):
        commands.amend(study, "  ", place, folder / "data")
    commands.amend(study, "A reviewer\nasked.", place, folder / "data")
    lines = capsys.readouterr().out.splitlines()
    new = prereg.read(place)
    (amendment,) = new["amendments"]
    assert amendment["why"] == "A reviewer asked."
    assert amendment["changes"] == lines
    assert lines[1:] == [
        "removes contrast rd against prenorm on validation",
        "adds contrast rd against prenorm on validation, primary, margin 0.5",
    ]
    assert (amendment["digest_before"], amendment["runs_finished"]) == (old["digest"], 4)
    assert amendment["runs_planned"] == 4
    assert (new["date"], new["question"]) == (old["date"], "And now?")
    results, _ = again(folder, place, change)
    assert results["contrasts"][0]["margin"] == 0.5
    assert results["provenance"]["amendments"] == [amendment]
    text = render(results)
    assert "plan amended once; the last when 4 of 4 runs were finished: A reviewer asked." in text
    assert "warning: contrasts, crossings, margins, seeds or the level were changed after runs had finished" in text
    with pytest.raises(RunError, match="there is nothing to amend"):
        commands.amend(study, "Again.", place, folder / "data")


def test_an_amendment_cannot_change_what_was_trained(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "trained"
    shutil.copytree(folder / "whole", place)
    before = {name: (place / name).read_bytes() for name in (PREREG, "study.yaml")}
    study = changed_study(folder, place, lambda raw: raw["base"].update(tokens=20480))
    with pytest.raises(RunError, match=r"tokens is 30720, but the study says 20480; delete .* choose another --dir"):
        commands.amend(study, "Shorter.", place, folder / "data")
    study = changed_study(folder, place, lambda raw: raw.update(cross=CROSS))
    with pytest.raises(RunError, match="its runs lie by other factors than cross has now; choose another --dir"):
        commands.amend(study, "Wider, too.", place, folder / "data")
    assert {name: (place / name).read_bytes() for name in (PREREG, "study.yaml")} == before
    with pytest.raises(RunError, match=r"prereg\.json: missing; `depthroute study plan` writes it"):
        commands.amend(study, "No plan yet.", tmp_path / "none", tmp_path / "no-data")
    assert not (tmp_path / "no-data").exists()


def test_power_is_told_for_a_guess_or_from_a_finished_study(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands.power(pairs=5, sd=0.01, effect=0.01)
    assert capsys.readouterr().out.splitlines() == [
        "5 pairs with a deviation of 0.01 detect a difference of 0.0168 nats a token 4 times in 5 (two-sided t test at "
        "level 0.05)",
        "a difference of 0.01 needs 10 pairs",
        "warning: the exact sign-flip test of 5 pairs gives no p below 0.0625, so never 0.05",
    ]
    commands.power(source=folder / "whole", as_json=True)
    (found,) = json.loads(capsys.readouterr().out)
    summary = json.loads((folder / "result.json").read_text())["contrasts"][0]["summary"]
    assert (found["contrast"], found["pairs"]) == ("rd against prenorm on validation", 2)
    assert found["sd"] == summary["sd"]
    commands.power(pairs=12, source=folder / "whole")
    assert "12 pairs" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"--level: must lie between 0\.0001 and 0\.5, not 2"):
        commands.power(pairs=3, sd=0.1, level=2.0)
    with pytest.raises(ConfigError, match="give --sd, or --from"):
        commands.power(pairs=3)
    with pytest.raises(ConfigError, match="--pairs: give"):
        commands.power(sd=0.1)
    with pytest.raises(RunError, match=r"results\.json: missing"):
        commands.power(source=folder / "data")


def test_power_is_not_told_from_results_that_were_edited_or_are_older_than_the_plan(
    folder: Path, tmp_path: Path
) -> None:
    place = tmp_path / "stale"
    shutil.copytree(folder / "whole", place)
    path = place / "results.json"
    kept = path.read_text()
    path.write_text(json.dumps({**json.loads(kept), "level": 0.2}))
    with pytest.raises(RunError, match=r"results\.json: was edited .*; `depthroute study run` writes it anew"):
        commands.power(source=place)
    path.write_text(kept)
    prereg.write(prereg.sealed({**prereg.read(place), "question": "?"}), place)
    with pytest.raises(RunError, match=r"results\.json: is older than the plan in prereg\.json"):
        commands.power(source=place)


def test_a_plan_says_that_a_model_cannot_be_built_before_anything_runs(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "rank"
    keys = {"model.residual": {"preset": "slr-block", "blocks": 2, "rank": 64}}
    study = changed_study(folder, place, lambda raw: raw["arms"].update(rank=keys))
    with pytest.raises(ConfigError, match=r"arm 'rank': keys: rank 64 is larger than the model's width 32"):
        commands.plan(study, place, folder / "data")
    assert not (place / PREREG).exists()
    assert not runs.started(place)
