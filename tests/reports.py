"""A study with every verdict in it, and odd words, for the tests of the report."""

import random
from functools import cache
from pathlib import Path
from typing import Any

from fabricated import plan_of, prereg_of, write_study

from depthroute.study import tuning
from depthroute.study.cells import Planned

ARMS = [
    "block",
    "prenorm",
    "rd",
    "rd-frozen_v",
    "rd-average",
    "slr",
    "an-arm-with-a-name-as-long-as-any-name-of-an-arm-may-ever-be.64_",
]
HELD_OUT = ("validation", "python_source")
QUESTION = 'Is <b>"depth" & breadth</b> 100 % of a $model_1 #{x} \\ ~ ^ ?'
assert len(ARMS[-1]) == 64
EFFECTS = {"prenorm": (0.03, 0.001), "rd": (-0.02, 0.001), "rd-frozen_v": (0.0, 0.0002), "rd-average": (0.0, 0.02)}
WHY = "A <i>held-out</i> file was there twice & is gone"

AMENDMENT = {
    "date": "2026-12-01 08:00",
    "why": WHY,
    "changes": ["held_out.austen: 1 file, was 2", "adds contrast rd against block on validation, primary"],
    "runs_finished": 7,
    "runs_planned": 22,
}


@cache
def plan() -> list[Planned]:
    return plan_of(ARMS, [1, 2, 3], replicates=[("block", 1)])


def prereg() -> dict[str, Any]:
    first = [
        {"arm": "rd", "against": "block", "primary": True, "margin": 0.005},
        {"arm": "prenorm", "against": "block", "primary": True},
    ]
    others = [{"arm": arm, "against": "block", "margin": 0.005} for arm in ARMS[3:]]
    further = [{"arm": "rd", "against": "prenorm", "held_out": "python_source"}]
    return prereg_of(
        plan(),
        [*first, *others, *further],
        question=QUESTION,
        held_out=list(HELD_OUT),
        amendments=[AMENDMENT],
        tuning={"seeds": [101, 102], "tokens": 300_000, "held_out": "tuning", "grids": {}},
    )


def final(cell: Planned, held_out: str) -> float:
    base = 2.9 + 0.2 * HELD_OUT.index(held_out) + 0.01 * cell.seed + 0.0003 * cell.replicate
    effect, spread = EFFECTS.get(cell.arm, (0.0, 0.0))
    return base + effect + spread * random.Random(f"{cell.arm} {cell.seed} {held_out}").uniform(-1, 1)


def write(study: Path) -> Path:
    """All runs but one, so that one contrast is incomplete."""
    study.mkdir(parents=True)
    grid = {"optimizer.queries": [0.001, 0.003]}
    chosen = {"selected": {"optimizer.queries": 0.003}, "on_edge": [*grid], "tuned": True}
    tuned = {"grid": grid, "points": [], **chosen, "digest": "f00"}
    tuning.write(dict.fromkeys(ARMS[:3], tuned), study)
    write_study(study, plan(), prereg(), final, HELD_OUT, left_out=[(ARMS[-1], 2)])
    return study
