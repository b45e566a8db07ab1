"""What a person sees while runs are at work: a live line a worker on a terminal, a plain line at times in a pipe."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import final

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from depthroute.train.progress import duration

PLAIN_SECONDS = 5.0


@dataclass(frozen=True)
class Working:
    """One run at work. `nll` in nats a token; `left` in seconds; both None before the first step."""

    name: str
    step: int
    steps: int
    nll: float | None
    left: float | None


@final
class Dashboard:
    """Enter it as a context. `say` prints a line that stays; `show` refreshes what is at work."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # Refreshed by `show` alone: a refreshing thread beside the starting of processes invites deadlocks.
        watched = console.file.isatty() and not console.is_dumb_terminal
        self._live = Live(console=console, auto_refresh=False, transient=True) if watched else None
        self._last_plain = time.monotonic()

    def __enter__(self) -> "Dashboard":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, summary: str, working: Sequence[Working]) -> None:
        if self._live is not None:
            self._live.update(Group(Text(summary), _table(working)), refresh=True)
        elif time.monotonic() - self._last_plain >= PLAIN_SECONDS:
            self._last_plain = time.monotonic()
            self.say(" | ".join([summary, *(_plain(run) for run in working)]))


def _table(working: Sequence[Working]) -> Table:
    table = Table.grid(padding=(0, 2))
    for run in working:
        bar = ProgressBar(total=run.steps, completed=run.step, width=24)
        table.add_row(run.name, bar, f"{run.step}/{run.steps}", _loss(run), _left(run))
    return table


def _plain(run: Working) -> str:
    return ", ".join(part for part in (f"{run.name}: {run.step}/{run.steps}", _loss(run), _left(run)) if part)


def _loss(run: Working) -> str:
    return "" if run.nll is None else f"training NLL {run.nll:.3f}"


def _left(run: Working) -> str:
    if run.step == run.steps:
        return "evaluating"
    return "starting" if run.left is None else f"{duration(run.left)} left"
