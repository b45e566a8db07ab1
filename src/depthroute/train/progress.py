"""What a person sees while a run trains, on stderr: a bar on a terminal, a plain line every few seconds in a pipe."""

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

LINE_SECONDS = 5.0


class TrainingProgress:
    """`update` after every step, `message` for whatever should stay on the screen. Closed by leaving its `with`."""

    def __init__(self, shown: bool) -> None:
        self._shown = shown
        self._rich: Progress | None = None
        if shown and sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(bar_width=None))
            self._rich = Progress(*columns, console=Console(stderr=True), transient=True, expand=True)
        self._last_line = 0.0
        self._task = None

    def __enter__(self) -> "TrainingProgress":
        if self._rich:
            self._rich.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._rich:
            self._rich.stop()

    def update(self, step: int, steps: int, nll: float, tokens_per_second: float, seconds_left: float) -> None:
        line = f"step {step}/{steps}  nll {nll:.4f}  {tokens_per_second:,.0f} tokens/s  {duration(seconds_left)} left"
        self._show(line, step, steps)

    def _show(self, line: str, done: int, total: int | None) -> None:
        if self._rich:
            if self._task is None:
                self._task = self._rich.add_task(line)
            self._rich.update(self._task, completed=done, total=total, description=line)
        elif self._shown and (time.monotonic() - self._last_line >= LINE_SECONDS or done == total):
            self._last_line = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    def building(self, stage: str, done: int, total: int | None) -> None:
        """Progress of the data, in bytes."""
        share = f"{done / total:.0%}" if total else amount(done)
        self._show(f"data: {stage} {share}", done, total)

    def counted(self, stage: str, done: int, total: int) -> None:
        """Progress of anything that is counted."""
        self._show(f"{stage} {done:,}/{total:,}", done, total)

    def evaluating(self, what: str, done: int) -> None:
        """Progress of an evaluation, in bytes of text; how many there are is not known beforehand."""
        self._show(f"{what}: {amount(done)}" if done else what, done, None)

    def message(self, text: str) -> None:
        if self._rich:
            self._rich.console.print(text, markup=False, highlight=False, soft_wrap=True)
        elif self._shown:
            print(text, file=sys.stderr, flush=True)


def amount(size: int) -> str:
    """`512 bytes`, `8.2 kB` or `1,234.0 MB`."""
    if size < 1e3:
        return f"{size} bytes"
    return f"{size / 1e3:.1f} kB" if size < 1e6 else f"{size / 1e6:,.1f} MB"


def duration(seconds: float) -> str:
    """`1h 02m`, `3m 05s` or `9s`."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 60}m {whole % 60:02d}s" if whole >= 60 else f"{whole}s"
