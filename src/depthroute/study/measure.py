"""How long a study will take: from the speed of its own runs, or of a few steps trained for the purpose."""

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from depthroute import config, runs
from depthroute.data import read_index
from depthroute.study.cells import Planned, overlay
from depthroute.study.prereg import milestones
from depthroute.study.state import state
from depthroute.train.loop import train

STEPS = 5
# A token that is only judged needs the forward pass, about a third of the work of a step.
JUDGED = 1 / 3
# Of a process, before its first step.
START_SECONDS = 3.0


def known_speeds(plan: Sequence[Planned], study: Path) -> dict[str, float]:
    """Tokens a second of every cell that has trained any steps, the median over its runs."""
    found: dict[str, list[float]] = {}
    for run in plan:
        directory = run.directory(study)
        if (directory / runs.METRICS).exists():
            speeds = [event["tokens_per_second"] for event in runs.metrics(directory) if event["event"] == "step"]
            if speeds:
                found.setdefault(run.cell, []).append(statistics.median(speeds))
    return {cell: statistics.median(speeds) for cell, speeds in found.items()}


def measured_speed(run: Planned, data_root: Path) -> float:
    """Tokens a second of `STEPS` steps of a run, trained into a directory that is deleted; the first does not count."""
    few: dict[str, Any] = {
        "tokens": STEPS * run.config.tokens_per_step,
        "schedule.warmup": 0,
        "evaluation": {"milestones": [], "every": None, "tokens": run.config.length},
        "track": [],
    }
    short = config.from_dict(overlay(run.config.model_dump(mode="json"), few))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        train(short, place, data_root, resume=False)
        speeds = [event["tokens_per_second"] for event in runs.metrics(place) if event["event"] == "step"]
    return statistics.median(speeds[1:])


def seconds_left(plan: Sequence[Planned], study: Path, data: Path, speeds: Mapping[str, float], workers: int) -> float:
    """Of training and judging all that is not finished, by workers that do not slow each other down."""
    parts = {name: part.tokens for name, part in read_index(data).parts.items() if name != "train"}
    total = 0.0
    for run in plan:
        if state(run, study) != "finished":
            judged = sum(min(tokens, run.config.evaluation.tokens or tokens) for tokens in parts.values())
            tokens = run.config.tokens + JUDGED * judged * len(milestones(run.config))
            total += START_SECONDS + tokens / speeds[run.cell]
    return total / workers
