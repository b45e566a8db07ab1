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

from depthroute import runs
from depthroute.errors import ConfigError, RunError
from depthroute.model.parity import Parity, measure
from depthroute.study import formats, seal
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
    study: Study, plan: Mapping[str, Any], planned: Sequence[Planned], directory: Path, say: Callable[[str], None]
) -> None:
    """Nothing where one implementation computes all. Else measure and keep the errors, unless they are known.

    They are of this plan, and of this device as long as a run is to be trained. `plan` is the content of prereg.json,
    `planned` its runs. RunError names the worst error if it is too large.
    """
    if study.parity is None or isinstance(plan["impl"], str):
        return
    cells = {run.cell: run for run in planned if not run.replicate}
    found = read_of(plan, directory)
    if found is None or (moved(found, cells) and unfinished(planned, directory)):
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


def read_of(plan: Mapping[str, Any], directory: Path) -> Entry | None:
    """What was measured under this plan, None if nothing was: another plan has other configurations."""
    found = read(directory)
    return found if found is not None and found["plan"] == plan["digest"] else None


def moved(found: Entry, cells: Mapping[str, Planned]) -> bool:
    """Whether it was measured on another device than the runs would have now."""
    return any(one["device"] != device.name(device.choose(cells[one["cell"]].config)) for one in found["entries"])


def unfinished(plan: Sequence[Planned], directory: Path) -> bool:
    return not all(runs.finished(run.directory(directory)) for run in plan)


def read(directory: Path) -> Entry | None:
    """What was measured, None if nothing was. RunError if the file was edited."""
    path = directory / PARITY
    return seal.read(path, FORMAT, formats.Parity, ANEW, ANEW, ANEW, ANEW) if path.exists() else None


def entries(cells: Mapping[str, Planned], impls: Mapping[str, str], tolerance: Mapping[str, float]) -> list[Entry]:
    """One a cell. What cells have in common is measured once."""
    known: dict[str, Parity] = {}
    found: list[Entry] = []
    for cell, run in cells.items():
        impl, place, precision = impls[cell], device.choose(run.config), run.config.precision
        token = (run.config.batch // run.config.accumulation, run.config.length)
        model, two_phase = run.config.model, run.config.reads == "two_phase"
        shape = f"{model.residual!r} {model.width} {model.layers} {token}"
        key = f"{shape} {impl} {place} {precision} {run.config.threads} {two_phase}"
        if key not in known:
            with threads(run.config.threads):
                known[key] = measure(model, impl, token, place, precision == "bf16", two_phase)
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
