"""A whole study from its text to its results, in one directory.

study.yaml                     the study that the directory belongs to
prereg.json                    its plan, written before the first run
parity.json                    how far each implementation is from fp64, where there are several
tuning/, tuning.json           runs that choose values, and what they chose
runs/                          run directories
configs/, logs/                what each run is started with, and what it printed
tuning-configs/, tuning-logs/  the same of tuning
results.json                   rewritten at the end of every `study run`
"""

import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from depthroute import runs
from depthroute.data import Progress, build
from depthroute.errors import RunError
from depthroute.study import amend, prereg, tuning
from depthroute.study.cells import Planned
from depthroute.study.dashboard import Dashboard
from depthroute.study.execute import Outcome, at_a_time, execute
from depthroute.study.lock import locked
from depthroute.study.parity import pass_gate
from depthroute.study.plan import Study, plan_runs
from depthroute.study.results import collect, save
from depthroute.study.seal import sealed, write_file
from depthroute.study.state import state
from depthroute.study.tuning import planned, tuning_runs
from depthroute.train import device
from depthroute.train.progress import amount

STUDY = "study.yaml"


def conduct(
    study: Study,
    text: str,
    directory: Path,
    data_root: Path,
    console: Console,
    workers: int | None = None,
    *,
    file: str = "STUDY.yaml",
    include_flagged: bool = False,
) -> tuple[dict[str, Any], Outcome]:
    """Plan the study if it is not, train what `directory` lacks of it, and write and return its results.

    The study's YAML is `text`, read from `file`; `workers` overrides its own number. The results are empty if it was
    stopped before there was a plan. ConfigError, DataError or RunError before anything starts if something in the
    study, its plan, its data, the directory or this machine stands in the way.
    """
    for run in [*tuning_runs(study), *plan_runs(study)]:
        device.choose(run.config)
    with Dashboard(console) as dashboard, claimed(directory, dashboard.say) as lock:
        try:
            plan = ready(study, text, directory, data_root, dashboard, file)
            pass_gate(study, plan, directory, dashboard.say)
        except KeyboardInterrupt:
            return {}, Outcome([], signal.SIGINT)
        number = workers or study.workers or at_a_time(plan_runs(study)[0].config)
        outcome = tune(study, number, directory, data_root, lock, dashboard)
        final = planned(study, directory)
        if outcome == Outcome([], 0):
            outcome = execute(final, number, directory, data_root, lock, dashboard)
        results = sealed(collect(plan, final, directory, include_flagged))
        save(results, directory)
    return results, outcome


@contextmanager
def claimed(directory: Path, say: Callable[[str], None]) -> Generator[int]:
    """Hold a study directory. Gives the lock that workers inherit.

    RunError if the directory holds runs without a plan, or another process is at work there.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory, say) as lock:
        for name in (STUDY, prereg.PREREG):
            if not (directory / name).exists() and (amend.begun(directory) or runs.started(directory)):
                raise RunError(f"{directory}: holds runs but no {name}; choose another --dir")
        yield lock


def ready(
    study: Study, text: str, directory: Path, data_root: Path, dashboard: Dashboard, file: str
) -> prereg.Document:
    """The plan of the directory, made now if there is none. RunError if the study, or what is left to run, differs."""
    if not (directory / prereg.PREREG).exists():
        dashboard.say(f"{directory}: planned now, in {prereg.PREREG}")
        return make_plan(study, text, directory, data_root, dashboard)
    plan = prereg.read(directory)
    if lines := amend.design_differences(plan, study):
        amend.refuse(directory, plan, lines, file)
    final = planned(study, directory)
    finished = sum(state(run, directory) == "finished" for run in final)
    dashboard.say(f"{directory}: {finished} of {len(final)} runs are complete")
    if finished < len(final):
        now = prereg.document(study, built(final, data_root, dashboard))
        if lines := amend.environment_differences(plan, now):
            amend.refuse(directory, plan, lines, file)
    keep_text(directory, text)
    return plan


def planned_in(
    study: Study, text: str, directory: Path, data_root: Path, dashboard: Dashboard, file: str
) -> prereg.Document:
    """What `study plan` writes, or finds written. Until something has run, another plan takes its place."""
    with claimed(directory, dashboard.say):
        if not (directory / prereg.PREREG).exists():
            return make_plan(study, text, directory, data_root, dashboard)
        plan = prereg.read(directory)
        lines = amend.design_differences(plan, study)
        if lines and amend.begun(directory):
            amend.refuse(directory, plan, lines, file)
        now = prereg.document(study, built(plan_runs(study), data_root, dashboard))
        if amend.begun(directory) or not (lines or amend.environment_differences(plan, now)):
            dashboard.say(f"{directory}: was planned already")
            keep_text(directory, text)
            return plan
        dashboard.say(f"{directory}: takes the place of the plan of {plan['date']}, of which nothing has run")
        prereg.write(now, directory)
        keep_text(directory, text)
        return now


def make_plan(study: Study, text: str, directory: Path, data_root: Path, dashboard: Dashboard) -> prereg.Document:
    """Build the data, and write prereg.json and study.yaml. Nothing has run."""
    plan = prereg.document(study, built(plan_runs(study), data_root, dashboard))
    prereg.write(plan, directory)
    keep_text(directory, text)
    return plan


def make_amendment(
    study: Study, text: str, directory: Path, data_root: Path, dashboard: Dashboard, why: str
) -> list[str]:
    """Write the amended plan, and return the lines of the amendment."""
    prereg.read(directory)  # Without a plan no data are built.
    data = built(plan_runs(study), data_root, dashboard)
    plan, frozen, lines = amend.amended(directory, study, data, why)
    lost = amend.disowned(prereg.read(directory), plan, study, directory)
    if lost:
        dashboard.say(
            f"warning: {directory}: {amend.counted(lost)} will be flagged, as trained otherwise than now planned"
        )
    if frozen != tuning.read(directory):
        tuning.write(frozen, directory)
    prereg.write(plan, directory)
    keep_text(directory, text)
    return lines


def tune(study: Study, workers: int, directory: Path, data_root: Path, lock: int, dashboard: Dashboard) -> Outcome:
    """Train what tuning lacks, and freeze what it chose. A run that diverges is a result here, not a failure."""
    now, frozen = tuning.digests(study), tuning.read(directory)
    for cell in frozen:
        if now.get(cell) != frozen[cell]["digest"]:
            raise RunError(f"{directory / tuning.TUNING}: {cell} was not chosen as the plan says; {tuning.ANEW}")
    if set(now) == set(frozen):
        return Outcome([], 0)
    open_runs = [run for run in tuning_runs(study) if run.cell not in frozen]
    todo = [run for run in open_runs if state(run, directory) != "diverged"]
    if todo:
        dashboard.say(f"tuning: {len(open_runs)} runs, before the others")
        outcome = execute(todo, workers, directory, data_root, lock, dashboard)
        failures = [failure for failure in outcome.failures if not failure.diverged]
        if failures or outcome.signal:
            return Outcome(failures, outcome.signal)
    for cell, entry in tuning.freeze(study, directory).items():
        if cell not in frozen and entry["tuned"]:
            dashboard.say(f"tuning: {cell} takes {entry['selected']}{_edges(entry['on_edge'])}")
    return Outcome([], 0)


def built(plan: Sequence[Planned], data_root: Path, dashboard: Dashboard) -> Path:
    dashboard.say(f"data: looking in {data_root}, building what is not there")
    return build(plan[0].config.data, data_root, _shown(dashboard))


def keep_text(directory: Path, text: str) -> None:
    path = directory / STUDY
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_file(path, text.encode())


def _edges(keys: Sequence[str]) -> str:
    return f"; on the edge of its grid: {', '.join(keys)}" if keys else ""


def _shown(dashboard: Dashboard) -> Progress:
    def show(stage: str, done: int, total: int | None) -> None:
        share = f", {done / total:.0%}" if total else ""
        dashboard.show(f"data: {stage}, {amount(done)}{share}", [])

    return show
