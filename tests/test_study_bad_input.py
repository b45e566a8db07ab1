"""The command line and a study that is wrong: one clear line, exit code 2, and nothing in the directory changes."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from depthroute import runs
from depthroute.cli import main
from studies import changed_study, trained_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    return trained_folder(tmp_path_factory, request)


def from_another_study(place: Path) -> None:
    """The run of another batch size in the place of one of ours."""
    path = place / "runs/rd/1" / runs.CONFIG
    path.write_text(path.read_text().replace("batch: 8", "batch: 16"))


def on_another_validation_set(place: Path) -> None:
    run = place / "runs/rd/1"
    events = [
        {**event, "tokens_evaluated": 64} if "tokens_evaluated" in event else event for event in runs.metrics(run)
    ]
    (run / runs.METRICS).write_bytes(b"".join(map(runs.encode, events)))


def edited_plan(place: Path) -> None:
    path = place / "prereg.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "level": 0.2}))


def foreign_results(place: Path) -> None:
    (place / "results.json").write_text("[1, 2]")


def said_otherwise(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda raw: raw.update(changes)


def a_run(raw: dict[str, Any]) -> None:
    base = raw.pop("base")
    raw.clear()
    raw.update(base)


@pytest.mark.parametrize(
    ("command", "change", "damage", "words"),
    [
        ("run", said_otherwise(baseline="rdd"), None, "no arm 'rdd' (did you mean 'rd'?"),
        ("plan", said_otherwise(seeds=[3]), None, "seeds: at least 2 seeds are needed, not 1"),
        ("run", said_otherwise(contrasts=[{"arm": "slr"}]), None, "contrasts.0.arm: no arm 'slr'"),
        ("plan", said_otherwise(contrasts=[{"arm": "rd", "equivalence": True}]), None, "equivalence needs a margin"),
        ("run", a_run, None, "describes one run; use depthroute train "),
        ("run", said_otherwise(level=0.1), None, "differs from the plan of"),
        ("plan", said_otherwise(level=0.1), None, "record it by: depthroute study amend"),
        ("run", dict, edited_plan, "prereg.json: was edited after it was written"),
        ("run", dict, from_another_study, "batch is 16, but the study says 8; delete"),
        ("run", dict, on_another_validation_set, "different held-out tokens, so they cannot be compared"),
        ("run", lambda raw: raw["arms"]["rd"].update(length=32), None, "length differs from arm 'prenorm'"),
        ("status", dict, edited_plan, "prereg.json: was edited after it was written"),
        ("report", dict, edited_plan, "prereg.json: was edited after it was written"),
        ("report", dict, foreign_results, "results.json: damaged; `depthroute study run` writes it anew"),
    ],
)
def test_each_mistake_is_one_line_and_exit_code_2_and_nothing_is_overwritten(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    change: Callable[[dict[str, Any]], object],
    damage: Callable[[Path], None] | None,
    words: str,
) -> None:
    place = tmp_path / "whole"
    shutil.copytree(folder / "whole", place)
    if damage is not None:
        damage(place)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file() and path.name != "study.lock"}
    study = changed_study(folder, place, change)
    where = [str(study), "--dir", str(place), "--data", str(folder / "data")]
    monkeypatch.setattr(
        sys, "argv", ["depthroute", "study", command, *(where if command in ("run", "plan") else [str(place)])]
    )
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    *progress, error = printed.err.splitlines()
    assert error.startswith("error: ")
    assert words in error
    assert not any("error" in line or "Traceback" in line for line in progress)
    after = {path: path.read_bytes() for path in place.rglob("*") if path.is_file() and path.name != "study.lock"}
    assert after == before


def test_a_directory_that_holds_a_run_but_no_plan_is_left_as_it_is(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "foreign"
    shutil.copytree(folder / "whole/runs/rd/1", place)
    before = {path.name for path in place.iterdir()}
    study = changed_study(folder, place, dict)
    monkeypatch.setattr(sys, "argv", ["depthroute", "study", "run", str(study), "--dir", str(place)])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err == f"error: {place}: holds runs but no study.yaml; choose another --dir\n"
    assert {path.name for path in place.iterdir()} - {"study.lock"} == before
