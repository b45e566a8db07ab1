"""The paired gap along training, at equal tokens, equal training FLOPs and equal wall time; and the noise floor.

At equal FLOPs or seconds the cheaper arm is read between two of its milestones, linearly, at what the dearer one had
spent at its own milestone. Nothing is read beyond a run's last milestone: what would need that is left out and counted.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from depthroute.study.statistics import mean, t_interval

AXES = ("tokens", "flops", "seconds")
Entry = Mapping[str, Any]
Pairs = Mapping[int, tuple[Entry, Entry]]
"""Run of the arm and run of the one it is compared with, by seed."""


def pairs_of(contrast: Entry, entries: Sequence[Entry], seeds: Sequence[int]) -> dict[int, tuple[Entry, Entry]]:
    """The complete pairs of a contrast, in the order of the seeds; replicates are no pairs."""
    runs = {
        (entry["arm"], entry["seed"]): entry
        for entry in entries
        if entry["levels"] == contrast["levels"] and entry["replicate"] == 0
    }
    arm, against = contrast["arm"], contrast["against"]
    return {
        seed: (runs[arm, seed], runs[against, seed])
        for seed in seeds
        if (arm, seed) in runs and (against, seed) in runs
    }


def gap_curves(contrast: Entry, entries: Sequence[Entry], seeds: Sequence[int], level: float) -> list[dict[str, Any]]:
    """One entry an axis; none without a complete pair. `level` is the error rate of the intervals, such as 0.05."""
    pairs = pairs_of(contrast, entries, seeds)
    if any(len(spent(run, "tokens", contrast["held_out"])) == 0 for pair in pairs.values() for run in pair):
        return []
    named = {key: contrast[key] for key in ("arm", "against", "levels", "held_out")}
    return [{**named, "axis": axis, **gap_curve(pairs, named, axis, level)} for axis in AXES if pairs]


def gap_curve(pairs: Pairs, named: Entry, axis: str, level: float) -> dict[str, Any]:
    """The gap at the milestones of the arm that spends more a token.

    `points` lie at what it had spent there, its mean over the seeds; `end` is what it spends in all. `interpolated`
    names the other arm, null if that was at the same milestones there; `left_out` counts milestones beyond its end.
    """
    curves = {seed: tuple(spent(run, axis, named["held_out"]) for run in pair) for seed, pair in pairs.items()}
    ours, theirs = (mean([price(pair[side], axis) for pair in pairs.values()]) for side in (0, 1))
    read = 0 if ours >= theirs else 1
    points: list[dict[str, Any]] = []
    exact, length = True, min(len(curve[read]) for curve in curves.values())
    for index in range(length):
        at = {seed: float(curve[read][index, 0]) for seed, curve in curves.items()}
        if not all(within(curves[seed][1 - read], x) for seed, x in at.items()):
            continue
        exact = exact and all(x in curves[seed][1 - read][index : index + 1, 0] for seed, x in at.items())
        by_seed = {str(seed): read_at(curves[seed][0], x) - read_at(curves[seed][1], x) for seed, x in at.items()}
        points.append({"x": mean(list(at.values())), **summary(list(by_seed.values()), level), "by_seed": by_seed})
    interpolated = None if exact else named["arm" if read == 1 else "against"]
    end = mean([float(curve[read][-1, 0]) for curve in curves.values()])
    return {"points": points, "end": end, "interpolated": interpolated, "left_out": length - len(points)}


def price(run: Entry, axis: str) -> float:
    """What a run spends a token; at equal tokens, less for the longer run, which can be read at the shorter's."""
    if axis == "tokens":
        return 1 / run["tokens"]
    return float(run["flops_per_token"]) if axis == "flops" else run["seconds"] / run["tokens"]


def spent(run: Entry, axis: str, held_out: str) -> np.ndarray:
    """[milestone, 2]: what a run had spent and its NLL there, at the milestones after the first step that have one."""
    rows = [
        (point["tokens"] * run["flops_per_token"] if axis == "flops" else point[axis], point["held_out"][held_out])
        for point in run["curve"]
        if point["tokens"] > 0 and held_out in point["held_out"]
    ]
    return np.array(rows, dtype=np.float64)


def within(curve: np.ndarray, x: float) -> bool:
    return bool(curve[0, 0] <= x <= curve[-1, 0])


def read_at(curve: np.ndarray, x: float) -> float:
    return float(np.interp(x, curve[:, 0], curve[:, 1]))


def summary(values: Sequence[float], level: float) -> dict[str, Any]:
    low, high = t_interval(values, 1 - level) if len(values) > 1 else (None, None)
    return {"mean": mean(values), "low": low, "high": high}


def noise(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """What a run repeated gives: final NLL of each replicate minus that of the run itself, by held-out set."""
    first = {_key(entry): entry for entry in entries if entry["replicate"] == 0}
    return [
        {
            **{key: entry[key] for key in ("arm", "levels", "seed", "replicate")},
            "difference": {
                name: part["nll"] - first[_key(entry)]["held_out"][name]["nll"]
                for name, part in entry["held_out"].items()
            },
        }
        for entry in entries
        if entry["replicate"] > 0 and _key(entry) in first
    ]


def noise_floor(repeated: Sequence[Entry], contrast: Entry) -> float | None:
    """The largest size of a difference that a repeat of either arm showed at a contrast's levels and on its set.

    None where no run of the two arms was repeated there.
    """
    held_out, arms = contrast["held_out"], (contrast["arm"], contrast["against"])
    sizes = [
        abs(entry["difference"][held_out])
        for entry in repeated
        if entry["arm"] in arms and entry["levels"] == contrast["levels"] and held_out in entry["difference"]
    ]
    return max(sizes, default=None)


def _key(entry: Entry) -> tuple[Any, ...]:
    return entry["arm"], tuple(entry["levels"].items()), entry["seed"]
