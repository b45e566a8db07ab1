"""From run directories to results.json. Reads directories only; nothing here trains.

runs         one entry a finished run: held-out NLL at the end and along the way, cost, conditions, flags
contrasts    one entry a planned comparison and combination of levels: differences by seed, tests, verdict, words
unplanned    the same pairs on the held-out sets that no contrast is about: differences by seed, and no test
crossings    one entry an effect of a crossed factor's level, and an interaction of it with the arms
parity       what the parity gate measured; null where one implementation computes all
gaps         one entry a contrast and axis (tokens, flops, seconds): the paired gap along training
noise        one entry a replicate: its difference from the run that it repeats
tuning, power, missing, flagged, provenance     what the numbers rest on

What the numbers say is worked out in `verdict` and `gaps` from `runs` alone; here they are read.
"""

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from depthroute import runs
from depthroute.errors import RunError
from depthroute.model.cost import ForwardFlops, forward_flops
from depthroute.study import formats, parity, seal
from depthroute.study.cells import Planned
from depthroute.study.crossing import planned_crossings
from depthroute.study.progress import last_step
from depthroute.study.seal import RESULTS, RESULTS_FORMAT
from depthroute.study.state import manifest, state
from depthroute.study.tuning import read as frozen
from depthroute.study.verdict import SHARED, judged

DESCRIBED = tuple(formats.Conditions.model_fields)
"""What a run's entry takes from its manifest."""


def collect(
    prereg: Mapping[str, Any], plan: Sequence[Planned], directory: Path, include_flagged: bool = False
) -> dict[str, Any]:
    """Everything that the finished runs of the study in `directory` say, and what is missing.

    `prereg` is the content of prereg.json. Runs whose manifest disagrees with it are flagged, and left out of every
    comparison unless `include_flagged`. RunError if a run is of another study, or if runs cannot be compared.
    """
    complete = [run for run in plan if runs.finished(run.directory(directory))]
    flops: dict[str, ForwardFlops] = {}
    entries = [read_run(run, directory, prereg, flops) for run in complete]
    found: dict[str, Any] = {
        "format": RESULTS_FORMAT,
        **{key: prereg[key] for key in ("question", "baseline", "arms", "seeds", "cross", "level")},
        "runs": entries,
        "contrasts": planned_contrasts(prereg),
        "crossings": planned_crossings(prereg),
        "parity": parity.read_of(prereg, directory),
        "tuning": tuning(prereg, directory),
        "power": prereg["power"],
        "missing": [missing(run, directory) for run in plan if run not in complete],
        "provenance": provenance(prereg, entries),
    }
    return judged(found, include_flagged)


def save(results: Mapping[str, Any], directory: Path) -> None:
    """Write results.json, sealed."""
    seal.write(directory / RESULTS, seal.sealed(results))


def planned_contrasts(prereg: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The plan's contrasts, one for every combination of the levels that it leaves open."""
    cross: Mapping[str, Sequence[str]] = prereg["cross"]
    found: list[dict[str, Any]] = []
    for contrast in prereg["contrasts"]:
        fixed: Mapping[str, str] = contrast.get("at") or {}
        choices = [[fixed[factor]] if factor in fixed else levels for factor, levels in cross.items()]
        for levels in product(*choices):
            kept = {key: contrast[key] for key in ("arm", "against", "held_out", "primary", "margin")}
            found.append({**kept, "levels": dict(zip(cross, levels, strict=True))})
    return found


def read_run(run: Planned, study: Path, prereg: Mapping[str, Any], flops: dict[str, ForwardFlops]) -> dict[str, Any]:
    """One finished run: its held-out NLL along the way and at the end, its speed, and what it was trained on.

    `flops` holds forward FLOPs a token by cell, and is filled. Seconds are those of the training steps alone.
    """
    directory = run.directory(study)
    described = manifest(run, study)
    events = runs.metrics(directory)
    check_steps(events, run.config.steps, directory)
    cell = run.cell
    if cell not in flops:
        model = run.config.model.model_copy(update={"vocab": described["vocab"]})
        flops[cell] = forward_flops(model, run.config.length)
    return {
        "arm": run.arm,
        "levels": dict(run.levels),
        "seed": run.seed,
        "replicate": run.replicate,
        "directory": directory.relative_to(study).as_posix(),
        "held_out": {
            name: {"nll": event["nll"], "bits_per_byte": event["bits_per_byte"], "tokens": event["tokens_evaluated"]}
            for name, event in runs.final_evaluation(directory).items()
        },
        "curve": curve(events),
        "steps": events[-1]["step"],
        "tokens": events[-1]["tokens"],
        "seconds": events[-1]["seconds"],
        "tokens_per_second": statistics.median(e["tokens_per_second"] for e in events if e["event"] == "step"),
        "flops_per_token": 3 * sum(flops[cell]),
        # As the manifest records it; those of earlier versions have no cost.
        "added_percent": described.get("cost", {}).get("added_percent", flops[cell].added_percent),
        **{key: described[key] for key in DESCRIBED},
        "flags": flags(described, prereg, cell),
    }


def check_steps(events: Sequence[Mapping[str, Any]], steps: int, run: Path) -> None:
    trained = [event["step"] for event in events if event["event"] == "step"]
    if trained != list(range(1, steps + 1)) or any(event["step"] > steps for event in events):
        raise RunError(
            f"{run / runs.METRICS}: is not that of {steps} steps, each once and in order; "
            f"delete {run} and run the study again"
        )


def curve(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The evaluations of a run in order, one entry a milestone."""
    seconds = {0: 0.0} | {event["step"]: event["seconds"] for event in events if event["event"] == "step"}
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        step = event["step"]
        if event["event"] == "evaluation":
            point: dict[str, Any] = {"step": step, "tokens": event["tokens"], "seconds": seconds[step], "held_out": {}}
            found.setdefault(step, point)["held_out"][event["held_out"]] = event["nll"]
    return list(found.values())


def flags(described: Mapping[str, Any], prereg: Mapping[str, Any], cell: str) -> list[str]:
    """In words, where a run's manifest disagrees with its plan. What the plan left open (null) agrees with all."""
    impl: Any = prereg["impl"]
    planned: dict[str, Any] = {
        **{key: prereg[key] for key in SHARED},
        "impl": impl if isinstance(impl, str) else impl.get(cell, "nothing"),
        **{f"versions.{name}": version for name, version in prereg["versions"].items()},
    }
    found = {**described, **{f"versions.{name}": version for name, version in described["versions"].items()}}
    return [
        f"{key} is {_short(found.get(key))}, planned {_short(value)}"
        for key, value in planned.items()
        if value is not None and found.get(key) != value
    ]


def missing(run: Planned, directory: Path) -> dict[str, Any]:
    event = last_step(run.directory(directory))
    return {
        "arm": run.arm,
        "levels": dict(run.levels),
        "seed": run.seed,
        "replicate": run.replicate,
        "state": state(run, directory),
        "step": 0 if event is None else event["step"],
        "steps": run.config.steps,
        "log": str(run.log(directory)),
    }


def tuning(prereg: Mapping[str, Any], directory: Path) -> dict[str, Any] | None:
    """What was tuned over which grid, what was chosen, and warnings in words; None if the plan tunes nothing.

    A cell that the plan does not tune, or has not tuned yet, is there with `tuned` false.
    """
    if prereg["tuning"] is None:
        return None
    known = frozen(directory)
    untuned: dict[str, Any] = {"grid": {}, "points": [], "selected": {}, "on_edge": [], "tuned": False}
    cells = {cell: {**untuned, **known.get(cell, {})} for cell in prereg["config_digests"]}
    keys = dict.fromkeys(key for entry in cells.values() for key in entry["on_edge"])
    edges = {key: ", ".join(cell for cell, entry in cells.items() if key in entry["on_edge"]) for key in keys}
    warnings = [f"the best {key} lies on the edge of its tuning grid for {names}" for key, names in edges.items()]
    untuned_cells = [cell for cell, entry in cells.items() if not entry["tuned"]]
    warnings += [f"not tuned: {', '.join(untuned_cells)}"] if untuned_cells else []
    return {"plan": prereg["tuning"], "cells": cells, "warnings": warnings}


def provenance(prereg: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The plan and the machine; and the distinct values of what a fair comparison wants to be single."""
    found: dict[str, Any] = {
        "plan": prereg["digest"],
        "date": prereg["date"],
        "amendments": prereg["amendments"],
        "machine": {"system": platform.platform(), "cores": os.cpu_count()},
        "training_seconds": sum(entry["seconds"] for entry in entries),
    }
    for key in (*SHARED, "device", "precision", "threads", "deterministic", "impl", "versions"):
        distinct: list[Any] = []
        for entry in entries:
            if entry[key] not in distinct:
                distinct.append(entry[key])
        found[key] = distinct
    return found


def _short(value: object) -> str:
    return f"{value[:12]}..." if isinstance(value, str) and len(value) > 20 else str(value)
