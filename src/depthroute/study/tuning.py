"""The tuning of a study: per cell, a grid of values tried on seeds and text that no comparison sees, then frozen.

tuning.json   {"format": 1, "digest": of all the rest, "cells": {"ARM[|FACTOR=LEVEL...]": {"grid": {key: [values]},
              "points": [{"values": {key: value}, "by_seed": {seed: NLL or null}, "mean": NLL or null, "failed": words
              or null}], "selected": {key: value}, "on_edge": [keys], "tuned": true, "digest": of what decided}}}

Selected is the point with the lowest mean NLL over the tuning seeds on the tuning split at the end of training; of
equal ones the first. A point of which a run diverged is kept as failed and never selected.
"""

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from depthroute import config, runs
from depthroute.errors import RunError
from depthroute.study import formats, seal
from depthroute.study.cells import Planned, cell_name
from depthroute.study.plan import Study, plan_runs, run_config
from depthroute.study.spec import TuningSpec
from depthroute.study.state import failure, manifest, reason

TUNING, FORMAT = "tuning.json", 1
ANEW = "delete it and run the study again: the selection is made anew from the tuning runs"
SELECTION = (
    "the point with the lowest mean NLL over the tuning seeds on the tuning split at the end of training; of equal "
    "ones the first; a point of which a run diverged is never selected"
)
# A tuning run is judged once, at its end.
AT_THE_END: dict[str, Any] = {"evaluation.milestones": [], "evaluation.every": None}


def tuning_runs(study: Study) -> list[Planned]:
    """Every point of every cell at every tuning seed, cell by cell. ConfigError names the arm and the values."""
    if study.tuning is None:
        return []
    return [run for at in study.combinations for arm in study.arms for run in cell_runs(study, study.tuning, arm, at)]


def cell_runs(study: Study, tuning: TuningSpec, arm: str, at: Mapping[str, str]) -> list[Planned]:
    grid = tuning.of(arm)
    shorter: dict[str, Any] = {"tokens": tuning.tokens, **AT_THE_END}
    return [
        Planned(arm, seed, run_config(study, arm, at, seed, values, shorter), at, point=values)
        for seed in (tuning.seeds if grid else [])
        for values in points(grid)
    ]


def points(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def read(directory: Path) -> dict[str, Any]:
    """What is frozen so far, by cell; empty before any tuning has ended. RunError if the file was edited."""
    path = directory / TUNING
    if not path.exists():
        return {}
    hints = dict.fromkeys(("missing", "damaged", "edited", "outdated"), ANEW)
    return seal.read(path, FORMAT, formats.TuningFile, **hints)["cells"]


def write(frozen: Mapping[str, Any], directory: Path) -> None:
    seal.write(directory / TUNING, seal.sealed({"format": FORMAT, "cells": frozen}))


def planned(study: Study, directory: Path) -> list[Planned]:
    """The runs of a study with the values that its tuning selected, where it has."""
    return plan_runs(study, {cell: entry["selected"] for cell, entry in read(directory).items()})


def digests(study: Study) -> dict[str, str]:
    """By cell, what decides its selection; empty without tuning."""
    if study.tuning is None:
        return {}
    return {
        cell_name(arm, at): _digest(study.tuning, cell_runs(study, study.tuning, arm, at))
        for at in study.combinations
        for arm in study.arms
    }


def freeze(study: Study, directory: Path) -> dict[str, Any]:
    """Select for every cell that is not frozen yet, and write tuning.json. Every tuning run has ended.

    RunError if all points of a cell diverged.
    """
    frozen = read(directory)
    if study.tuning is None:
        return frozen
    for at in study.combinations:
        for arm in study.arms:
            cell = cell_name(arm, at)
            if cell not in frozen:
                frozen[cell] = select(study.tuning, arm, cell_runs(study, study.tuning, arm, at), directory)
    write(frozen, directory)
    return frozen


def select(tuning: TuningSpec, arm: str, plan: Sequence[Planned], directory: Path) -> dict[str, Any]:
    """The entry of one cell."""
    grid = tuning.of(arm)
    tried = [_point(values, tuning, plan, directory) for values in (points(grid) if grid else [])]
    good = [point for point in tried if point["mean"] is not None]
    if tried and not good:
        raise RunError(
            f"tuning of {plan[0].cell}: every point diverged ({tried[0]['failed']}); amend its grid, or skip it"
        )
    selected: dict[str, Any] = min(good, key=lambda point: point["mean"])["values"] if good else {}
    return {
        "grid": grid,
        "points": tried,
        "selected": selected,
        "on_edge": [key for key, value in selected.items() if on_edge(value, grid[key])],
        "tuned": bool(tried),
        "digest": _digest(tuning, plan),
    }


def on_edge(value: Any, values: Sequence[Any]) -> bool:
    """Whether a number is the least or the largest that was tried: a better one may lie beyond."""
    numbers = [one for one in values if isinstance(one, int | float) and not isinstance(one, bool)]
    return len(numbers) == len(values) and value in (min(numbers), max(numbers))


def _point(values: Mapping[str, Any], tuning: TuningSpec, plan: Sequence[Planned], directory: Path) -> dict[str, Any]:
    by_seed: dict[str, float | None] = {}
    failed = None
    for run in plan:
        if run.point == values:
            why = reason(failure(run, directory) or [])
            failed = failed or why
            by_seed[str(run.seed)] = None if why else _loss(run, tuning, directory)
    losses = [loss for loss in by_seed.values() if loss is not None]
    mean = None if failed else sum(losses) / len(losses)
    return {"values": values, "by_seed": by_seed, "mean": mean, "failed": failed}


def _loss(run: Planned, tuning: TuningSpec, directory: Path) -> float:
    manifest(run, directory)  # A run of another configuration has no say.
    judged = runs.final_evaluation(run.directory(directory))
    if tuning.held_out not in judged:
        raise RunError(
            f"{run.directory(directory)}: was not evaluated on '{tuning.held_out}', on which values are chosen; "
            "delete it and run the study again"
        )
    return float(judged[tuning.held_out]["nll"])


def _digest(tuning: TuningSpec, plan: Sequence[Planned]) -> str:
    deciding = [tuning.held_out, *(config.digest(run.config) for run in plan)] if plan else []
    return hashlib.sha256(json.dumps(deciding).encode()).hexdigest()
