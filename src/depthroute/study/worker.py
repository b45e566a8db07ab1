"""One run as a process that ends with its launcher: `python -m depthroute.study.worker LAUNCHER_PID ARGUMENTS...`.

The process becomes `python -m depthroute ARGUMENTS...`. On Linux the kernel sends it SIGTERM when the launcher dies,
however it dies, so that the run saves a checkpoint and stops instead of training on for nobody.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    launcher = int(sys.argv[1])
    if sys.platform == "linux":
        end_with(launcher)
    # -P: a file of the working directory must not stand in for a module, as it does not for the installed command.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "depthroute", *sys.argv[2:]])


def end_with(launcher: int) -> None:
    """Ask the kernel for SIGTERM at the launcher's death; stop at once if it is dead already."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != launcher:
        sys.exit(f"the launcher (process {launcher}) has ended")


if __name__ == "__main__":
    main()
