"""The parity gate: no study of several implementations trains before each of them is shown to compute the same.

parity.json   {"format": 1, "digest": of all the rest, "plan": digest of the plan, "tolerance": {precision: number},
              "processor", "capability": of the CPU, "torch": version,
              "entries": [{"cell", "impl", "precision", "device", "threads", "deterministic", "forward", "gradient",
              "worst", "within"}]}

Every cell of the plan is measured against fp64 on its own shapes, in every mixture (`forward`) and every gradient; the
two are largest differences as shares of the largest number (`model.parity`), null where something is not finite. Where
tuning tries other shapes, each of them is an entry too, and `cell` names its values. The tolerance is part of the plan.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from depthroute import runs
from depthroute.errors import ConfigError, RunError
from depthroute.model.parity import Parity, measure
from depthroute.study import formats, seal
from depthroute.study.cells import Planned, point_words
from depthroute.study.plan import Study
from depthroute.study.tuning import planned, tuning_runs
from depthroute.train import device

PARITY, FORMAT = "parity.json", 1
ANEW = "delete it and run the study again: it is measured anew"

EXAMPLES = {"fp32": "1.0e-5", "bf16": "1.0e-2"}

Entry = dict[str, Any]


def check_tolerance(study: Study, impls: Mapping[str, str], trained: Sequence[Planned]) -> None:
    """ConfigError if several implementations are planned, and no tolerance for a precision. `impls` is by cell."""
    different = list(dict.fromkeys(impls.values()))
    if len(different) < 2:
        return
    known = study.parity.tolerance if study.parity else {}
    for run in trained:
        if run.config.precision not in known:
            raise ConfigError(
                f"parity.tolerance.{run.config.precision}: not given, and {len(different)} implementations are "
                f"compared ({', '.join(different)}); give the largest error, as a share, that you take for none, such "
                f"as parity: {{tolerance: {{{run.config.precision}: {EXAMPLES[run.config.precision]}}}}}"
            )


def pass_gate(study: Study, plan: Mapping[str, Any], directory: Path, say: Callable[[str], None]) -> None:
    """Nothing where one implementation computes all. Else measure and keep the errors, whenever something is to train.

    What was measured before is not believed: it may be of another machine. `plan` is the content of prereg.json.
    RunError names the worst error if it is too large.
    """
    if study.parity is None or isinstance(plan["impl"], str):
        return
    final = planned(study, directory)
    finished = all(runs.finished(run.directory(directory)) for run in final)
    found = read_of(plan, directory) if finished else None
    if found is None:
        say(f"parity: {len(plan['impl'])} configurations are measured against fp64, forward and in every gradient")
        tolerance: dict[str, float] = {**study.parity.tolerance}
        # Tuning trains too, and chooses nothing that it has not tried.
        errors = entries([*final, *tuning_runs(study)], plan["impl"], tolerance)
        body = {"plan": plan["digest"], "tolerance": tolerance, **machine(), "entries": errors}
        found = seal.sealed({"format": FORMAT, **body})
        seal.write(directory / PARITY, found)
    wrong = [one for one in found["entries"] if not one["within"]]
    if wrong:
        worst = max(wrong, key=farthest)
        raise RunError(
            f"parity: {worst['impl']} in {worst['cell']} is {farthest(worst):.1e} away from fp64 in the "
            f"{worst['worst']}, the plan allows {found['tolerance'][worst['precision']]:g} in {worst['precision']}; "
            f"leave it out, or allow what you would defend; {directory / PARITY} has every error"
        )


def read_of(plan: Mapping[str, Any], directory: Path) -> Entry | None:
    """What was measured under this plan, None if nothing was: another plan has other configurations."""
    found = read(directory)
    return found if found is not None and found["plan"] == plan["digest"] else None


def read(directory: Path) -> Entry | None:
    """What was measured, None if nothing was. RunError if the file was edited."""
    path = directory / PARITY
    return seal.read(path, FORMAT, formats.Parity, ANEW, ANEW, ANEW, ANEW) if path.exists() else None


def machine() -> dict[str, str]:
    """What the errors of a CPU depend on."""
    return {
        "processor": device.processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
    }


def entries(trained: Sequence[Planned], impls: Mapping[str, str], tolerance: Mapping[str, float]) -> list[Entry]:
    """One a cell and shape, as its runs compute. What cells have in common is measured once."""
    known: dict[str, Parity] = {}
    found: dict[tuple[str, str], Entry] = {}
    for run in trained:
        impl, place, precision = impls[run.cell], device.choose(run.config), run.config.precision
        token = (run.config.batch // run.config.accumulation, run.config.length)
        model, two_phase = run.config.model, run.config.reads == "two_phase"
        shape = f"{model.residual!r} {model.width} {model.layers} {token}"
        computed = f"{impl} {place} {precision} {run.config.threads} {run.config.deterministic} {two_phase}"
        key = f"{shape} {computed}"
        if (run.cell, key) in found:
            continue
        if key not in known:
            with device.numerics(run.config):
                known[key] = measure(model, impl, token, place, precision == "bf16", two_phase)
        forward, gradient, worst = known[key]
        found[run.cell, key] = {
            "cell": run.cell if run.point is None else f"{run.cell} with {point_words(run.point)}",
            "impl": impl,
            "precision": precision,
            "device": device.name(place),
            "threads": run.config.threads,
            "deterministic": run.config.deterministic,
            "forward": forward if math.isfinite(forward) else None,
            "gradient": gradient if math.isfinite(gradient) else None,
            "worst": worst,
            "within": max(forward, gradient) <= tolerance[precision],
        }
    return [*found.values()]


def farthest(entry: Mapping[str, Any]) -> float:
    return max(math.inf if entry[key] is None else entry[key] for key in ("forward", "gradient"))
