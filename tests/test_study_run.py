"""Studies that really train: pairs, interruption and continuation to the same bits, failures that hide nothing."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import typer

from depthroute import runs
from depthroute.cli import study as commands
from depthroute.errors import ConfigError, RunError
from depthroute.study import prereg
from depthroute.study.execute import Outcome, environment
from depthroute.study.lock import held, locked
from depthroute.study.plan import Study, plan_runs, read_study
from depthroute.study.progress import last_step
from depthroute.study.results import collect
from depthroute.study.statistics import paired
from studies import STEPS, again, changed_study, command, raw_study, trained_folder
from studies import environment as shell

PAIRS = [("prenorm", 3), ("rd", 3), ("prenorm", 1), ("rd", 1)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    return trained_folder(tmp_path_factory, request)


def weights(study: Path) -> dict[str, bytes]:
    return {
        f"{arm} {seed}": (study / "runs" / arm / str(seed) / "model/model.safetensors").read_bytes()
        for arm, seed in PAIRS
    }


def losses(results: Any) -> dict[tuple[str, int], Any]:
    return {(run["arm"], run["seed"]): run["held_out"] for run in results["runs"]}


def test_results_are_the_runs_own_numbers_and_their_paired_differences(folder: Path) -> None:
    results = json.loads((folder / "result.json").read_text())
    assert results == json.loads((folder / "whole/results.json").read_text())
    assert results["missing"] == []
    assert list(losses(results)) == PAIRS
    nll = {}
    for (arm, seed), held_out in losses(results).items():
        event = runs.metrics(folder / "whole/runs" / arm / str(seed))[-2]
        assert (event["event"], event["step"]) == ("evaluation", STEPS)
        assert held_out == {
            "validation": {
                "nll": event["nll"],
                "bits_per_byte": event["bits_per_byte"],
                "tokens": event["tokens_evaluated"],
            }
        }
        nll[arm, seed] = event["nll"]
    (difference,) = results["contrasts"]
    values = [nll["rd", seed] - nll["prenorm", seed] for seed in (3, 1)]
    assert (difference["arm"], difference["against"]) == ("rd", "prenorm")
    assert list(difference["by_seed"].values()) == values
    assert difference["summary"]["mean"] == paired(values).mean
    assert difference["summary"]["low"] == paired(values).low
    assert len(results["provenance"]["data_digest"]) == len(results["provenance"]["versions"]) == 1
    assert results["provenance"]["threads"] == [1]


def test_equal_seeds_start_from_equal_losses_and_others_do_not(folder: Path) -> None:
    first = {(arm, seed): runs.metrics(folder / "whole/runs" / arm / str(seed))[0]["nll"] for arm, seed in PAIRS}
    assert first["prenorm", 3] == pytest.approx(first["rd", 3], abs=1e-5)
    assert abs(first["prenorm", 3] - first["prenorm", 1]) > 1e-3


def test_a_stopped_and_a_killed_study_ends_in_the_bits_of_an_unbroken_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, place = folder / "study.yaml", folder / "broken"

    def start_and(signal_number: int, most: int) -> tuple[int, str, str]:
        """Begin or go on, look at it, and send the signal after a random number of further steps, up to `most`."""
        moment = steps_done(place) + random.randint(1, most)
        process = subprocess.Popen(
            command("study", "run", study, "--dir", place), cwd=folder, env=shell(),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while steps_done(place) < moment:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.005)
        commands.status(place)
        assert re.search(r"runs: \d of 4 complete, .*under way.*\nworkers are at it now\n", capsys.readouterr().out)
        process.send_signal(signal_number)
        printed, errors = process.communicate(timeout=60)
        return process.returncode, printed, errors

    code, printed, errors = start_and(signal.SIGINT, most=12)
    assert code == 130
    assert printed == "0 runs are complete, 4 are not\n", "a stop prints the state and no empty tables"
    assert "saves a checkpoint" in errors or "save a checkpoint" in errors
    assert f"go on with: depthroute study run {study} --dir {place} --data data" in errors
    # Of the two at work one may have been starting up, with nothing to save yet.
    assert any((place / "runs").glob("*/3/checkpoints/*"))
    assert not held(place)

    code, _, _ = start_and(signal.SIGKILL, most=40)
    assert code == -signal.SIGKILL
    deadline = time.monotonic() + 30
    while held(place):
        assert time.monotonic() < deadline, "workers go on without their study"
        time.sleep(0.05)
    assert not all(runs.finished(place / "runs" / arm / str(seed)) for arm, seed in PAIRS)

    with ThreadPoolExecutor() as pool:
        killed = pool.submit(kill_the_first_worker_that_steps, place)
        _, outcome = again(folder, place)
    assert [failure.run.name for failure in outcome.failures] == [killed.result()], "a worker that dies hides no other"
    assert outcome.signal == 0
    results, outcome = again(folder, place)
    assert outcome == Outcome([], 0)
    assert weights(place) == weights(folder / "whole")
    assert losses(results) == losses(json.loads((folder / "result.json").read_text()))


def kill_the_first_worker_that_steps(place: Path) -> str:
    """SIGKILL to one of this process's own workers once it has trained a step; the name of its run."""
    before, deadline = {run: last_step(run) for run in run_directories(place)}, time.monotonic() + 60
    while time.monotonic() < deadline:
        for run in run_directories(place):
            step = last_step(run)
            if step is not None and step != before.get(run) and step["step"] < STEPS:
                worker = next(pid for pid in children() if str(run) in Path(f"/proc/{pid}/cmdline").read_text())
                os.kill(worker, signal.SIGKILL)
                return f"{run.parent.name} seed {run.name}"
        time.sleep(0.005)
    raise AssertionError("no worker has trained a step")


def run_directories(place: Path) -> list[Path]:
    return [place / "runs" / arm / str(seed) for arm, seed in PAIRS]


def children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def steps_done(place: Path) -> int:
    return sum((last_step(place / "runs" / arm / str(seed)) or {"step": 0})["step"] for arm, seed in PAIRS)


def test_a_failing_arm_is_reported_with_its_log_and_hides_no_other(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = folder / "failing"
    shutil.copytree(folder / "whole", place)
    wild = {"optimizer": {"matrices": {"learning_rate": 1e18}}, "clip": None}
    study = changed_study(folder, place, lambda raw: raw["arms"].update(wild=wild))
    commands.amend(study, "a rate that cannot work", place, folder / "data")
    assert capsys.readouterr().out == "adds arm wild\nadds contrast wild against prenorm on validation\n"
    with pytest.raises(typer.Exit) as end:
        commands.run(study, place, folder / "data", None, False)
    assert end.value.exit_code == 1
    printed = capsys.readouterr()
    log = place / "logs/wild/3.log"
    assert f"wild seed 3 failed; its log {log} ends:" in printed.err
    assert "nll is nan" in printed.err
    assert "nll is nan" in log.read_text()
    assert "Traceback" not in log.read_text()
    whole = json.loads((folder / "result.json").read_text())
    results = json.loads((place / "results.json").read_text())
    assert losses(results) == losses(whole)
    assert results["contrasts"][0] == whole["contrasts"][0]
    assert [(run["arm"], run["seed"], run["steps"]) for run in results["missing"]] == [
        ("wild", 3, STEPS),
        ("wild", 1, STEPS),
    ]
    assert f"{whole['contrasts'][0]['summary']['mean']:+.4f}" in printed.out

    shutil.rmtree(place / "runs/rd/1/model")
    shutil.rmtree(place / "runs/rd/3")
    commands.status(place, False)
    status = capsys.readouterr().out
    assert "runs: 2 of 6 complete, 2 diverged, 1 interrupted, 1 not started" in status
    assert "wild seed 3 diverged, log logs/wild/3.log: error: " in status
    assert "nll is nan" in status


def test_a_finished_study_trains_nothing_again(folder: Path) -> None:
    place = folder / "finished"
    shutil.copytree(folder / "whole", place)
    before = weights(place)
    results, outcome = again(folder, place, lambda raw: raw.update(workers=1))
    assert outcome == Outcome([], 0)
    assert weights(place) == before
    assert results == json.loads((folder / "result.json").read_text())
    assert read_study(place / "study.yaml").workers == 1


def test_another_study_is_refused_and_nothing_is_overwritten(folder: Path) -> None:
    place = folder / "other"
    shutil.copytree(folder / "whole", place)
    kept = (place / "study.yaml").read_bytes()
    with pytest.raises(
        RunError, match=r"other: differs from the plan of .*: batch was 8, is now 4; record it by: depth"
    ):
        again(folder, place, lambda raw: raw["base"].update(batch=4))
    assert (place / "study.yaml").read_bytes() == kept
    for name in ("study.yaml", "prereg.json"):
        content = (place / name).read_bytes()
        (place / name).unlink()
        with pytest.raises(RunError, match=rf"holds runs but no {name}; choose another --dir"):
            again(folder, place)
        (place / name).write_bytes(content)
    shutil.rmtree(place / "runs/rd/1")
    shutil.copytree(place / "runs/rd/3", place / "runs/rd/1")
    with pytest.raises(RunError, match=r"seed is 3, but the study says 1; delete .*runs/rd/1 alone to train it anew"):
        again(folder, place)


def test_a_second_study_in_the_same_directory_is_refused(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "busy"
    place.mkdir()
    assert not held(place)
    with locked(place, print):
        assert held(place)
        with pytest.raises(RunError, match="another study run"):
            again(folder, place)
    assert not held(place)
    assert not (place / "study.yaml").exists()


def test_a_lock_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "study.lock").symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"study\.lock: cannot be written"), locked(tmp_path, print):
        pass


def change_run(run: Path, file: str, key: str, value: object) -> None:
    path = run / file
    if file == "manifest.json":
        path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    else:
        changed = [{**event, key: value} if key in event else event for event in runs.metrics(run)]
        path.write_bytes(b"".join(map(runs.encode, changed)))


@pytest.mark.parametrize(
    ("file", "key", "value", "message"),
    [
        ("manifest.json", "config_digest", "f00", "another configuration"),
        ("metrics.jsonl", "tokens_evaluated", 64, "different held-out tokens"),
    ],
)
def test_runs_that_are_no_pairs_are_not_compared(
    folder: Path, tmp_path: Path, file: str, key: str, value: object, message: str
) -> None:
    place = tmp_path / "mixed"
    shutil.copytree(folder / "whole", place)
    change_run(place / "runs/rd/1", file, key, value)
    with pytest.raises(RunError, match=message):
        again(folder, place)


@pytest.mark.parametrize(
    ("key", "value"),
    [("data_digest", "f00"), ("tokenizer_digest", "f00"), ("impl", "another"), ("versions", {"torch": "1.0"})],
)
def test_a_run_that_disagrees_with_the_plan_is_flagged_and_left_out_unless_asked_for(
    folder: Path, tmp_path: Path, key: str, value: object
) -> None:
    place = tmp_path / "flagged"
    shutil.copytree(folder / "whole", place)
    change_run(place / "runs/rd/1", "manifest.json", key, value)
    results, _ = again(folder, place)
    assert [flagged["directory"] for flagged in results["flagged"]] == ["runs/rd/1"]
    assert list(results["contrasts"][0]["by_seed"]) == ["3"]
    study = read_study(place / "study.yaml")
    if "digest" not in key:
        kept = collect(prereg.read(place), plan_runs(study), place, include_flagged=True)
        assert list(kept["contrasts"][0]["by_seed"]) == ["3", "1"]


def test_workers_get_one_thread_that_waits_asleep_and_a_steady_allocator_on_a_cpu() -> None:
    run = plan_runs(Study.parse(raw_study(Path("text.txt"))))[0]
    variables = environment(run.config, 0, {"HOME": "/home/someone", "OMP_NUM_THREADS": "8"})
    assert variables["HOME"] == "/home/someone"
    assert variables["OMP_NUM_THREADS"] == variables["MKL_NUM_THREADS"] == "1"
    assert variables["OMP_WAIT_POLICY"] == "passive"
    assert environment(run.config, 0, {"OMP_WAIT_POLICY": "active"})["OMP_WAIT_POLICY"] == "active"
    assert variables["MALLOC_MMAP_MAX_"] == "0"
    assert variables["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_a_device_that_is_not_here_is_refused_before_anything_starts(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"bf16|cuda"):
        again(folder, tmp_path / "elsewhere", lambda raw: raw["base"].update(device="cuda", precision="bf16"))
    assert not (tmp_path / "elsewhere/runs").exists()
