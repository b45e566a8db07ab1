"""One `study run` a directory at a time. The workers inherit the lock, so it is held until the last has ended."""

import fcntl
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from depthroute.errors import RunError

NAME = "study.lock"
PATIENCE_SECONDS = 60.0


@contextmanager
def locked(directory: Path, message: Callable[[str], None]) -> Generator[int]:
    """Hold the directory's lock and give its file descriptor, to be inherited by every worker.

    RunError if another study process holds it. If that process is dead, its workers are saving their checkpoints: wait.
    """
    handle = os.open(directory / NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _acquire(handle, directory, message)
        _sign(handle, directory / NAME)
        yield handle
    finally:
        os.close(handle)


def held(directory: Path) -> bool:
    """Whether a study (or what is left of its workers) is at work in this directory."""
    try:
        handle = os.open(directory / NAME, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _try(handle)
    finally:
        os.close(handle)


def _acquire(handle: int, directory: Path, message: Callable[[str], None]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    told = False
    while not _try(handle):
        owner = os.pread(handle, 32, 0).decode()
        if owner and _alive(int(owner)):
            raise RunError(f"{directory}: another study run (process {owner}) is at work here; wait for it or stop it")
        if time.monotonic() > deadline:
            raise RunError(f"{directory}: workers of an earlier study run are still at work here; stop them first")
        if not told:
            message("waiting for the workers of a killed study to save and stop")
            told = True
        time.sleep(0.1)


def _sign(handle: int, path: Path) -> None:
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
    except OSError as error:
        # What the system says of a full disk names no file.
        raise RunError(f"{path}: cannot be written ({error.strerror}); mend it and go on") from error


def _try(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
