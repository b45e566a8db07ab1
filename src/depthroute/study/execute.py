"""Run a plan: each worker trains one run at a time, in a process that saves and stops when the study does."""

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from depthroute import config, runs
from depthroute.launch import ALLOCATOR
from depthroute.study.cells import Planned
from depthroute.study.dashboard import Dashboard
from depthroute.study.progress import Clock
from depthroute.study.seal import write_file
from depthroute.study.state import check_same_run, forget_failure, reason, record_failure
from depthroute.train import device
from depthroute.train.stopping import stop_requests

POLL_SECONDS = 0.2
LOG_LINES = 5
Process = subprocess.Popen[bytes]


@dataclass(frozen=True)
class Failure:
    """A run that ended without finishing, with the last lines of its log."""

    run: Planned
    log: Path
    lines: list[str]

    @property
    def diverged(self) -> bool:
        return reason(self.lines) is not None


@dataclass(frozen=True)
class Outcome:
    """What an execution could not finish. `signal` is the one that asked it to stop, or 0."""

    failures: list[Failure]
    signal: int


def execute(
    plan: Sequence[Planned], workers: int, directory: Path, data_root: Path, lock: int, dashboard: Dashboard
) -> Outcome:
    """Train what is not finished. A failed run hides none of the others; SIGINT or SIGTERM stops all of them gently.

    Before anything starts, ConfigError if this machine cannot compute a run, and RunError if a run directory holds
    another configuration than the plan's.
    """
    for run in plan:
        device.choose(run.config)
        check_same_run(run, directory)
    waiting = deque(run for run in plan if not runs.finished(run.directory(directory)))
    finished = len(plan) - len(waiting)
    clock = Clock(plan, directory)
    at_work: dict[int, tuple[Planned, Process]] = {}
    failures: list[Failure] = []
    stopping = False
    with stop_requests() as stop, _ended_together(at_work):
        while waiting or at_work:
            if stop.signal_number and not stopping:
                stopping = True
                waiting.clear()
                dashboard.say(f"stopping: {len(at_work)} workers save a checkpoint first")
                for _, process in at_work.values():
                    process.terminate()
            for slot in range(workers):
                if slot not in at_work and waiting:
                    run = waiting.popleft()
                    at_work[slot] = run, start(run, slot, directory, data_root, lock)
            time.sleep(POLL_SECONDS)
            for slot, (run, process) in list(at_work.items()):
                if process.poll() is None:
                    continue
                del at_work[slot]
                if runs.finished(run.directory(directory)):
                    finished += 1
                    dashboard.say(f"{run.name}: finished")
                elif not stopping:
                    lines = last_lines(run.log(directory))
                    record_failure(run, directory, process.returncode, lines)
                    failures.append(Failure(run, run.log(directory), lines))
                    dashboard.say(f"{run.name}: FAILED, see {run.log(directory)}")
            dashboard.show(clock.summary(finished), [clock.working(run) for run, _ in at_work.values()])
    return Outcome(failures, stop.signal_number)


def start(run: Planned, slot: int, directory: Path, data_root: Path, lock: int) -> Process:
    """Start or take up one run, as a process that prints to the run's log and stops when this one dies."""
    path, log = run.config_file(directory), run.log(directory)
    path.parent.mkdir(parents=True, exist_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    forget_failure(run, directory)
    write_file(path, config.dump(run.config).encode())
    arguments = ["train", path, "--run", run.directory(directory), "--data", data_root, "--resume"]
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "depthroute.study.worker", str(os.getpid()), *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(run.config, slot, os.environ),
            pass_fds=[lock],
            # A Ctrl-C in the terminal reaches the study alone, which then asks the workers to stop.
            start_new_session=True,
        )


def at_a_time(run: config.Config) -> int:
    """How many runs are trained at a time unless a number is given: one a GPU, or as many as the CPU has cores for."""
    if device.choose(run).type == "cuda":
        return len(visible_gpus(os.environ))
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(cores // (run.threads or 1), 1)


def environment(run: config.Config, slot: int, inherited: Mapping[str, str]) -> dict[str, str]:
    """Variables of a worker: threads as the run says, repeatable cuBLAS, glibc's allocator on a CPU, one GPU a slot."""
    variables = {**inherited, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TOKENIZERS_PARALLELISM": "false"}
    # A thread that spins while it waits takes the core from another run's.
    variables.setdefault("OMP_WAIT_POLICY", "passive")
    if run.threads is not None:
        for library in ("OMP", "MKL", "OPENBLAS"):
            variables[f"{library}_NUM_THREADS"] = str(run.threads)
    if device.choose(run).type == "cuda":
        gpus = visible_gpus(inherited)
        variables["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    else:
        variables |= ALLOCATOR
    return variables


def visible_gpus(inherited: Mapping[str, str]) -> list[str]:
    given = inherited.get("CUDA_VISIBLE_DEVICES")
    return given.split(",") if given else [str(index) for index in range(torch.cuda.device_count())]


@contextmanager
def _ended_together(at_work: Mapping[int, tuple[Planned, Process]]) -> Generator[None]:
    """However this ends, no worker is left behind."""
    try:
        yield
    finally:
        for _, process in at_work.values():
            process.terminate()
        for _, process in at_work.values():
            process.wait()


def last_lines(log: Path) -> list[str]:
    text = log.read_text(encoding="utf-8", errors="replace")
    return [line for line in text.splitlines() if line.strip()][-LOG_LINES:]
