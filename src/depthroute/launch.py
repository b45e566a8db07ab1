"""How the process of a run is started: variables that work only if they are set before it begins.

Without them glibc hands every large tensor back to the system and asks for it again, at each call.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

ALLOCATOR: Mapping[str, str] = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(32 * 2**30),
    "MALLOC_TOP_PAD_": str(256 * 2**20),
}


def with_allocator() -> None:
    """Begin the command anew with glibc's variables, on Linux; those that are set stay as they are.

    A process of someone else's, which only calls the command's functions, is left as it is.
    """
    missing = {name: value for name, value in ALLOCATOR.items() if name not in os.environ}
    ours = "depthroute" in (Path(word).name for word in sys.orig_argv)
    if sys.platform == "linux" and missing and ours:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **missing})


def allocator() -> dict[str, str | None]:
    """The variables as this process has them."""
    return {name: os.environ.get(name) for name in ALLOCATOR}
