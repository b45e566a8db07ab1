"""What a number of pairs can detect, in words and numbers, for a plan and for `study power`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from depthroute.errors import RunError
from depthroute.study import power
from depthroute.study.plan import Contrast, Study
from depthroute.study.seal import RESULTS, read_results

POWER = 0.8


def power_statement(study: Study, planned: Sequence[Contrast]) -> dict[str, Any]:
    """What a study's number of seeds can detect at its assumed deviation; without one, what its exact test can."""
    pairs, level = len(study.seeds), study.level
    if study.power is None:
        words = [f"{pairs} pairs; no deviation is assumed (`power: {{sd: ...}}`), so nothing is known of their power"]
        return {"pairs": pairs, "level": level, "sd": None, "detectable": None, **_exact(pairs, level, words)}
    found = answer(pairs, study.power.sd, level, primary=sum(contrast.primary for contrast in planned))
    for margin in sorted({contrast.margin for contrast in planned if contrast.margin is not None}):
        chance = power.equivalence_power(0.0, margin, study.power.sd, pairs, level)
        found.setdefault("equivalence", {})[f"{margin:g}"] = chance
        found["words"].append(
            f"if there is no difference, equivalence at margin {margin:g} is shown {chance:.0%} of the time"
        )
    return found


def answer(pairs: int, sd: float, level: float, effect: float | None = None, primary: int = 1) -> dict[str, Any]:
    """The difference that `pairs` detect with probability 0.8, and the pairs that `effect` needs; nats a token.

    With several `primary` contrasts also what Holm's correction asks of the first of them.
    """
    found: dict[str, Any] = {"pairs": pairs, "sd": sd, "level": level, "power": POWER}
    found["detectable"] = power.detectable_difference(pairs, sd, level)
    words = [
        f"{pairs} pairs with a deviation of {sd:g} detect a difference of {found['detectable']:.4f} nats a token "
        f"4 times in 5 (two-sided t test at level {level:g})"
    ]
    if primary > 1:
        found["detectable_by_holm"] = power.detectable_difference(pairs, sd, level / primary)
        words.append(
            f"where Holm's correction over {primary} primary contrasts asks for p < {level / primary:.2g}: "
            f"{found['detectable_by_holm']:.4f}"
        )
    if effect is not None:
        found |= {"effect": effect, "pairs_needed": power.pairs_needed(effect, sd, level)}
        words.append(f"a difference of {effect:g} needs {found['pairs_needed']} pairs")
    return {**found, **_exact(pairs, level, words)}


def measured(directory: Path) -> list[tuple[str, int, float]]:
    """Name, pairs and measured deviation of every contrast of a study's results that has one."""
    results, _ = read_results(directory)
    found = [
        (_name(one), int(one["summary"]["pairs"]), float(one["summary"]["sd"]))
        for one in results["contrasts"]
        if one["summary"] is not None
    ]
    if not found:
        raise RunError(f"{directory / RESULTS}: no contrast has two pairs that differ yet, so no deviation is measured")
    return found


def _exact(pairs: int, level: float, words: Sequence[str]) -> dict[str, Any]:
    least = power.smallest_exact_p(pairs)
    warning = f"warning: the exact sign-flip test of {pairs} pairs gives no p below {least:.4g}, so never {level:g}"
    return {"smallest_exact_p": least, "words": [*words, *([] if power.can_reach(level, pairs) else [warning])]}


def _name(contrast: dict[str, Any]) -> str:
    levels = "".join(f" {factor}={level}" for factor, level in contrast["levels"].items())
    return f"{contrast['arm']}{levels} against {contrast['against']} on {contrast['held_out']}"
