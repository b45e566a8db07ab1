"""The parity gate: no study of several implementations trains before each of them is shown to compute the same.

parity.json   {"format": 1, "digest": of all the rest, "plan": digest of the plan, "tolerance": {precision: number},
              "entries": [{"cell", "impl", "precision", "device", "threads", "forward", "gradient", "worst", "within"}]}

Every cell of the plan is measured against fp64 on its own shapes, in every mixture (`forward`) and every gradient; the
two are largest differences as shares of the largest number (`model.parity`), null where something is not finite. The
tolerance is part of the plan.
"""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from depthroute.errors import ConfigError, RunError
from depthroute.model.parity import Parity, measure
from depthroute.study import seal
from depthroute.study.cells import Planned
from depthroute.study.plan import Study
from depthroute.train import device

PARITY, FORMAT = "parity.json", 1
ANEW = "delete it and run the study again: it is measured anew"

Entry = dict[str, Any]


def check_tolerance(study: Study, impls: Mapping[str, str], cells: Mapping[str, Planned]) -> None:
    """ConfigError if several implementations are planned, and no tolerance for a precision. `impls` is by cell."""
    different = list(dict.fromkeys(impls.values()))
    if len(different) < 2:
        return
    known = study.parity.tolerance if study.parity else {}
    for run in cells.values():
        if run.config.precision not in known:
            raise ConfigError(
                f"parity.tolerance.{run.config.precision}: not given, and {len(different)} implementations are "
                f"compared ({', '.join(different)}); give the largest error, as a share, that you take for none"
            )


def pass_gate(
    study: Study, plan: Mapping[str, Any], runs: Sequence[Planned], directory: Path, say: Callable[[str], None]
) -> None:
    """Nothing where one implementation computes all. Else measure, unless it was under this plan, and keep the errors.

    `plan` is the content of prereg.json, `runs` what it stands for. RunError names the worst error if it is too large.
    """
    if study.parity is None or isinstance(plan["impl"], str):
        return
    found = read(directory)
    if found is None or found["plan"] != plan["digest"]:
        cells = {run.cell: run for run in runs if not run.replicate}
        say(f"parity: {len(cells)} configurations are measured against fp64, forward and in every gradient")
        tolerance: dict[str, float] = {**study.parity.tolerance}
        body = {"plan": plan["digest"], "tolerance": tolerance, "entries": entries(cells, plan["impl"], tolerance)}
        found = seal.sealed({"format": FORMAT, **body})
        seal.write(directory / PARITY, found)
    wrong = [one for one in found["entries"] if not one["within"]]
    if wrong:
        worst = max(wrong, key=farthest)
        raise RunError(
            f"parity: {worst['impl']} in {worst['cell']} is {farthest(worst):.1e} away from fp64 in the "
            f"{worst['worst']}, the plan allows {found['tolerance'][worst['precision']]:g} in {worst['precision']}; "
            f"{directory / PARITY} has every error"
        )


def read(directory: Path) -> Entry | None:
    """What was measured, None if nothing was. RunError if the file was edited."""
    path = directory / PARITY
    return seal.read(path, FORMAT, ANEW, ANEW, ANEW, ANEW) if path.exists() else None


def entries(cells: Mapping[str, Planned], impls: Mapping[str, str], tolerance: Mapping[str, float]) -> list[Entry]:
    """One a cell. What cells have in common is measured once."""
    known: dict[str, Parity] = {}
    found: list[Entry] = []
    for cell, run in cells.items():
        impl, place, precision = impls[cell], device.choose(run.config), run.config.precision
        token = (run.config.batch // run.config.accumulation, run.config.length)
        model = run.config.model
        key = f"{model.residual!r} {model.width} {model.layers} {token} {impl} {place} {precision} {run.config.threads}"
        if key not in known:
            with threads(run.config.threads):
                known[key] = measure(model, impl, token, place, half=precision == "bf16")
        forward, gradient, worst = known[key]
        found.append(
            {
                "cell": cell,
                "impl": impl,
                "precision": precision,
                "device": device.name(place),
                "threads": run.config.threads,
                "forward": forward if math.isfinite(forward) else None,
                "gradient": gradient if math.isfinite(gradient) else None,
                "worst": worst,
                "within": max(forward, gradient) <= tolerance[precision],
            }
        )
    return found


def farthest(entry: Mapping[str, Any]) -> float:
    return max(math.inf if entry[key] is None else entry[key] for key in ("forward", "gradient"))


@contextmanager
def threads(number: int | None) -> Generator[None]:
    """Compute with as many threads as a run will have."""
    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
