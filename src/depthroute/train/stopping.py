"""Ctrl-C and SIGTERM as a request that the loop takes up between two steps, so that it can save first."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from depthroute.errors import RunError


class Interrupted(RunError):
    """A run was asked to stop, and saved a checkpoint. `exit_code` is the shell's convention: 128 + the signal."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class StopRequested(Exception):
    """Raised by `Stop.check`, where the loop can be left."""


class Stop:
    """The signal that asked for the end, once there was one."""

    def __init__(self) -> None:
        self.signal_number = 0

    def check(self) -> None:
        if self.signal_number:
            raise StopRequested


@contextmanager
def stop_requests() -> Iterator[Stop]:
    """Catch SIGINT and SIGTERM inside the `with`; a second of the same acts at once. Idle outside the main thread."""
    stop = Stop()
    before: dict[int, Any] = {}

    def request(number: int, frame: FrameType | None) -> None:
        stop.signal_number = number
        signal.signal(number, before[number])

    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
