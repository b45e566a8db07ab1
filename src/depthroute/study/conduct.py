"""A whole study from its text to its results, in one directory.

study.yaml               the study that the directory belongs to
configs/ARM/SEED.yaml    what each run is started with
logs/ARM/SEED.log        what each run printed
runs/ARM/SEED/           run directories
results.json             rewritten at the end of every `study run`
"""

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from depthroute import runs
from depthroute.data import Progress, build
from depthroute.errors import RunError
from depthroute.study.dashboard import Dashboard
from depthroute.study.execute import Outcome, execute
from depthroute.study.lock import locked
from depthroute.study.plan import Study, check_continues, plan_runs, read_study
from depthroute.study.results import collect, save

STUDY = "study.yaml"


def conduct(
    study: Study, text: str, directory: Path, data_root: Path, console: Console, workers: int | None = None
) -> tuple[dict[str, Any], Outcome]:
    """Train what `directory` lacks of the study whose YAML is `text`, and write and return its results.

    `workers` overrides the study's own number. ConfigError, DataError or RunError before anything starts if something
    in the study, its data, the directory or this machine stands in the way.
    """
    plan = plan_runs(study)
    with Dashboard(console) as dashboard, claimed(directory, study, text, dashboard.say) as lock:
        finished = sum(runs.finished(run.directory(directory)) for run in plan)
        dashboard.say(f"{directory}: {finished} of {len(plan)} runs are complete")
        try:
            if finished < len(plan):
                dashboard.say(f"data: looking in {data_root}, building what is not there")
                build(plan[0].config.data, data_root, _shown(dashboard))
        except KeyboardInterrupt:
            outcome = Outcome([], signal.SIGINT)
        else:
            outcome = execute(plan, workers or study.workers, directory, data_root, lock, dashboard)
        results = collect(study, plan, directory)
        save(results, directory)
    return results, outcome


@contextmanager
def claimed(directory: Path, study: Study, text: str, say: Callable[[str], None]) -> Generator[int]:
    """Hold a study directory for this study, whose YAML is kept in it. Gives the lock that workers inherit.

    RunError if the directory holds another study, or another process is at work there.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory, say) as lock:
        path = directory / STUDY
        if path.exists():
            for line in check_continues(study, read_study(path), str(directory)):
                say(f"{directory}: this study {line}")
        elif (directory / "runs").exists() or runs.started(directory):
            raise RunError(f"{directory}: holds runs but no {STUDY}; choose another --dir")
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            runs.write_atomic(path, text.encode())
        yield lock


def _shown(dashboard: Dashboard) -> Progress:
    def show(stage: str, done: int, total: int | None) -> None:
        share = f", {done / total:.0%}" if total else ""
        dashboard.show(f"data: {stage}, {done / 1e6:,.0f} MB{share}", [])

    return show
