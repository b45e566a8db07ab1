"""A run or the runs of a study, as what can be evaluated."""

import contextlib
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from depthroute import runs
from depthroute.data import Tokenizer
from depthroute.errors import RunError
from depthroute.evaluation.score import Scorer
from depthroute.study import prereg
from depthroute.study.conduct import STUDY
from depthroute.study.plan import read_study
from depthroute.study.results import collect
from depthroute.study.tuning import planned
from depthroute.study.verdict import included
from depthroute.train.device import numerics
from depthroute.train.trained import check_finished, configuration_of, load

WINDOWS = 8
"""At a time, where no training says how many."""


class Trained(NamedTuple):
    """A run's model, ready to score, and its tokenizer. `conditions` say what its numbers depend on."""

    scorer: Scorer
    tokenizer: Tokenizer
    conditions: dict[str, Any]


@contextlib.contextmanager
def opened(run: Path, length: int | None = None) -> Generator[Trained]:
    """Everything that evaluating a finished run needs. RunError says what is missing.

    It computes in fp32 on the GPU where there is one, with the windows, unless their length is given, their number at a
    time, the threads and the determinism of the run's training.
    """
    check_finished(run)
    trained = configuration_of(run)
    if length is None:
        if trained is None:
            raise RunError(f"{run}: was imported, so nothing says how long its windows were; give --length")
        length = trained.length
    with contextlib.nullcontext() if trained is None else numerics(trained):
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model, tokenizer = load(run, device)
        at_once = WINDOWS if trained is None else trained.batch // trained.accumulation
        scorer = Scorer(model, tokenizer.end, length, at_once)
        conditions = {
            "run": str(run),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "length": length,
            "precision": "fp32",
            "device": device.type,
            "impl": model.impl,
        }
        yield Trained(scorer, tokenizer, conditions)


def is_study(directory: Path) -> bool:
    """Whether a directory is a study's, and not a run's. RunError if it is neither."""
    if (directory / prereg.PREREG).is_file():
        return True
    if not (directory / runs.MANIFEST).is_file():
        if (directory / "config.json").is_file():
            runs.check_run(directory)  # which says how it becomes one
        raise RunError(f"{directory}: is neither a run nor a study: it has no {runs.MANIFEST} and no {prereg.PREREG}")
    return False


class StudyRuns(NamedTuple):
    """The finished runs of a study that its comparisons count, and in words which are left out."""

    results: Mapping[str, Any]
    runs: list[Mapping[str, Any]]
    left_out: list[str]


def of_study(directory: Path) -> StudyRuns:
    """RunError if none has finished."""
    plan = planned(read_study(directory / STUDY), directory)
    results = collect(prereg.read(directory), plan, directory)
    counted = [run for run in included(results["runs"], include_flagged=False) if run["replicate"] == 0]
    if not counted:
        raise RunError(f"{directory}: no run has finished that could be evaluated; see depthroute study status")
    flagged = [f"{run['directory']}: {'; '.join(run['flags'])}" for run in results["flagged"]]
    missing = [f"{run['arm']} seed {run['seed']}: {run['state']}" for run in results["missing"]]
    return StudyRuns(results, counted, flagged + missing)
