"""A factor crossed with the arms: what a level changes in each arm, and whether it changes the arms' difference.

    effect        NLL(arm, level) - NLL(arm, first level)                                at equal seeds
    interaction   effect in an arm - effect in the baseline, which is the arms' difference at the level minus the one at
                  the first level: a difference of differences

What the arms differ by at one level is an ordinary contrast. Pure functions of plain data.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

Entry = Mapping[str, Any]


def planned_crossings(prereg: Entry) -> list[dict[str, Any]]:
    """Every effect and interaction that the plan asks for; a sum of signed `terms`, each a cell. Plans may lack any."""
    found: list[dict[str, Any]] = []
    for crossing in prereg.get("crossings", []):
        factor = crossing["factor"]
        first, *others = prereg["cross"][factor]
        rest = {name: levels for name, levels in prereg["cross"].items() if name != factor}
        for chosen in product(*rest.values()):
            at = dict(zip(rest, chosen, strict=True))
            kept = {"levels": at, "held_out": crossing["held_out"], "primary": False, "margin": crossing["margin"]}
            for level in others:
                effects = {arm: effect(arm, factor, level, first, at) for arm in prereg["arms"]}
                base = prereg["baseline"]
                for arm, terms in effects.items():
                    found.append({**pair(arm, level, first), **kept, "kind": "effect", "terms": terms})
                for arm in effects:
                    if arm != base:
                        terms = effects[arm] + [{**term, "sign": -term["sign"]} for term in effects[base]]
                        named = pair(f"{arm} minus {base}", level, first)
                        found.append({**named, **kept, "kind": "interaction", "terms": terms})
    return found


def effect(arm: str, factor: str, level: str, first: str, at: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {"sign": 1, "arm": arm, "levels": {**at, factor: level}},
        {"sign": -1, "arm": arm, "levels": {**at, factor: first}},
    ]


def pair(what: str, level: str, first: str) -> dict[str, str]:
    return {"arm": f"{what} at {level}", "against": f"{what} at {first}"}


def crossed(crossing: Entry, entries: Sequence[Entry], seeds: Sequence[int]) -> dict[str, float]:
    """The sum by seed, for the seeds at which all of its runs are there; replicates are no part of it."""
    held_out = crossing["held_out"]
    nll = {
        (run["arm"], frozenset(run["levels"].items()), run["seed"]): run["held_out"][held_out]["nll"]
        for run in entries
        if run["replicate"] == 0 and held_out in run["held_out"]
    }
    found: dict[str, float] = {}
    for seed in seeds:
        cells = {(term["arm"], frozenset(term["levels"].items()), seed): term["sign"] for term in crossing["terms"]}
        if cells.keys() <= nll.keys():
            found[str(seed)] = sum(sign * nll[cell] for cell, sign in cells.items())
    return found
