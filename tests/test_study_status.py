"""What a person sees of a study that is under way, in the terminal that it runs in and from another one."""

import io
import json
import shutil
from pathlib import Path

import pytest
import yaml
from fabricated import events as written
from rich.console import Console

from depthroute import runs
from depthroute.cli import study as commands
from depthroute.errors import ConfigError, RunError
from depthroute.study.dashboard import Dashboard, Working
from depthroute.study.plan import Study, plan_runs
from depthroute.study.progress import last_step
from studies import raw_study, trained_folder, write_study


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    return trained_folder(tmp_path_factory, request)


def test_the_status_of_a_study_is_its_table_and_what_is_missing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = folder / "partial"
    shutil.copytree(folder / "whole", place)
    shutil.rmtree(place / "runs/rd/1")
    commands.status(place, False)
    printed = capsys.readouterr().out
    assert "rd seed 1: no step yet" in printed
    assert "incomplete: 1 of 2 planned pairs" in printed
    assert "runs: 3 of 4 complete, 1 not started" in printed
    assert "nothing is at work" in printed
    commands.status(place, True)
    assert json.loads(capsys.readouterr().out)["missing"][0]["arm"] == "rd"
    with pytest.raises(ConfigError, match="no such file"):
        commands.status(folder / "data", False)
    (place / "prereg.json").unlink()
    with pytest.raises(RunError, match=r"prereg\.json: missing; `depthroute study plan` writes it"):
        commands.status(place, False)


def test_status_shows_the_frozen_plan_and_says_where_the_study_file_differs_from_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "edited"
    shutil.copytree(folder / "whole", place)
    commands.status(place)
    as_planned = capsys.readouterr().out
    assert "differs" not in as_planned
    raw = yaml.safe_load((place / "study.yaml").read_text())
    raw["base"]["batch"] = 4
    write_study(place, raw)
    commands.status(place)
    line = "warning: study.yaml differs from the plan, which is what is shown: batch was 8, is now 4\n"
    assert capsys.readouterr().out == as_planned.replace("runs: 4 of 4", f"{line}runs: 4 of 4")
    raw["arms"]["third"] = {"clip": 0.5}
    write_study(place, raw)
    commands.status(place)
    shown = capsys.readouterr().out
    assert ": adds arm third and in 2 more\n" in shown
    assert "runs: 4 of 4 complete" in shown
    commands.status(place, as_json=True)
    assert json.loads(capsys.readouterr().out)["differences"][-1] == "batch was 8, is now 4"


def test_the_newest_step_is_found_behind_other_events_and_damage(tmp_path: Path) -> None:
    assert last_step(tmp_path) is None
    run = plan_runs(Study.parse(raw_study(Path("text.txt"))))[0]
    events = written(run, lambda _: 2.0, ("validation",))[:5]
    assert [event["event"] for event in events] == ["evaluation", "step", "step", "step", "step"]
    no_event, no_step = {"seconds": 9.0}, {**events[-1], "step": "5"}
    lines = b"".join(map(runs.encode, [*events, events[0], no_event, no_step]))
    (tmp_path / runs.METRICS).write_bytes(lines + b'{"event": "step", "st\n7\n' + runs.encode(events[-1])[:40])
    assert last_step(tmp_path) == events[-1]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_line_a_worker_and_a_pipe_none_at_once() -> None:
    working = [Working("rd seed 1", 30, 60, 4.25, 72.0), Working("prenorm seed 1", 0, 60, None, None)]
    screen, pipe = Terminal(), io.StringIO()
    for file in (screen, pipe):
        console = Console(file=file, force_terminal=isinstance(file, Terminal), width=100, _environ={"TERM": "xterm"})
        with Dashboard(console) as dashboard:
            dashboard.say("[bold] is printed as it is")
            dashboard.show("1 of 4 runs complete", working)
        assert "[bold] is printed as it is" in file.getvalue()
    for part in ("1 of 4 runs complete", "rd seed 1", "30/60", "training NLL 4.250", "1m 12s left", "starting"):
        assert part in screen.getvalue()
    assert "rd seed 1" not in pipe.getvalue()
