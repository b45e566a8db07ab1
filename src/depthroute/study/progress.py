"""How far runs are, read from their directories while they train, and how long the rest will take."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from depthroute import runs
from depthroute.study.cells import Planned
from depthroute.study.dashboard import Working
from depthroute.train.progress import duration

TAIL_BYTES = 16384


def last_step(run: Path) -> dict[str, Any] | None:
    """The newest step event of a run, from the end of its metrics; None before the first step.

    A damaged line is passed over: this is for the eye, and the run itself refuses to go on from it.
    """
    try:
        with (run / runs.METRICS).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return None
    events = map(runs.decode, reversed(lines))
    return next((event for event in events if event is not None and event["event"] == "step"), None)


@final
class Clock:
    """Measures steps from the moment it is made, so that a study that is taken up again is not thought fast."""

    def __init__(self, plan: Sequence[Planned], study: Path) -> None:
        self._plan, self._study = plan, study
        self._began = time.monotonic()
        self._done_before = sum(self._steps_done(run) for run in plan)
        self._seen: dict[str, tuple[float, int]] = {}

    def summary(self, finished: int) -> str:
        """How many runs are complete, and the time left at the speed so far."""
        kind = "runs" if self._plan[0].point is None else "tuning runs"
        text = f"{finished} of {len(self._plan)} {kind} complete"
        done = sum(self._steps_done(run) for run in self._plan)
        left = sum(run.config.steps for run in self._plan) - done
        elapsed = time.monotonic() - self._began
        if done == self._done_before or left == 0:
            return f"{text}, {duration(elapsed)} gone"
        return f"{text}, {duration(elapsed)} gone, about {duration(left * elapsed / (done - self._done_before))} left"

    def working(self, run: Planned) -> Working:
        event = last_step(run.directory(self._study))
        if event is None:
            return Working(run.name, 0, run.config.steps, None, None)
        step, now = int(event["step"]), time.monotonic()
        began, first = self._seen.setdefault(run.name, (now, step))
        left = (run.config.steps - step) * (now - began) / (step - first) if step > first else None
        return Working(run.name, step, run.config.steps, float(event["nll"]), left)

    def _steps_done(self, run: Planned) -> int:
        event = last_step(run.directory(self._study))
        return 0 if event is None else int(event["step"])
