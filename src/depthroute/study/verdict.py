"""What the planned rule says of each contrast, in one careful word and one sentence.

lower, higher   a primary contrast whose t interval excludes 0, also after Holm's correction over the primary ones
equivalent      two one-sided tests put the difference inside the planned margin, and the t interval holds 0: only here
                stands "no difference"
undecided       a primary contrast that is neither; the sentence says which effects are excluded
described       any other contrast that is not primary: its numbers stand there, and no claim
identical       every difference is exactly zero, and nothing is tested
incomplete      a planned pair is missing, so the rule is not applied yet

Pure functions of plain data: results.json as `results` writes it holds all that they need.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from depthroute.errors import RunError
from depthroute.study import power, statistics
from depthroute.study.crossing import crossed
from depthroute.study.gaps import gap_curves, noise, pairs_of

Entry = Mapping[str, Any]
SHARED = ("data_digest", "tokenizer_digest")


def judged(results: Entry, include_flagged: bool = False) -> dict[str, Any]:
    """`results` with its contrasts, gap curves and noise worked out from its own runs.

    Flagged runs take part only if asked for. RunError if runs that take part cannot be compared.
    """
    entries = included(results["runs"], include_flagged)
    check_pairing(entries)
    seeds, level = results["seeds"], results["level"]
    contrasts = [measured(contrast, entries, seeds, level) for contrast in results["contrasts"]]
    tested = [c for c in contrasts if c["primary"]]
    # The family is as planned: a primary contrast that has no p yet, or needs none, still counts.
    ps = [1.0 if untested(c) else c["summary"]["t_p"] for c in tested]
    for contrast, p in zip(tested, statistics.holm(ps), strict=True):
        if not untested(contrast):
            contrast["summary"]["holm_p"] = p
    # Results of an earlier version have none.
    crossings = [
        {**crossing, **tested_sums(crossed(crossing, entries, seeds), crossing["margin"], level)}
        for crossing in results.get("crossings", [])
    ]
    for compared in (*contrasts, *crossings):
        compared["verdict"] = verdict(compared, seeds, level)
        compared["words"] = words(compared, seeds, level)
    return {
        **results,
        "include_flagged": include_flagged,
        "contrasts": contrasts,
        "unplanned": unplanned(contrasts, entries, seeds),
        "crossings": crossings,
        "parity": results.get("parity"),
        "gaps": [gap for contrast in contrasts for gap in gap_curves(contrast, entries, seeds, level)],
        "noise": noise(entries),
        "flagged": [{"directory": run["directory"], "flags": run["flags"]} for run in results["runs"] if run["flags"]],
    }


def included(entries: Sequence[Entry], include_flagged: bool) -> list[Entry]:
    return [entry for entry in entries if include_flagged or not entry["flags"]]


def check_pairing(entries: Sequence[Entry]) -> None:
    """RunError unless all runs read the same data with the same tokenizer and are judged on the same tokens."""
    for entry in entries[1:]:
        first = entries[0]
        differing = [key for key in SHARED if entry[key] != first[key]]
        if _judged_on(entry) != _judged_on(first):
            differing.append("held-out tokens")
        if differing:
            raise RunError(
                f"{entry['directory']} and {first['directory']} have different {differing[0]}, so they cannot be "
                "compared; delete the one that is wrong and run the study again"
            )


def _judged_on(entry: Entry) -> dict[str, int]:
    return {name: part["tokens"] for name, part in entry["held_out"].items()}


def differences(contrast: Entry, entries: Sequence[Entry], seeds: Sequence[int]) -> dict[str, float]:
    """NLL of the arm minus that of the other, by seed, on the contrast's held-out set."""
    held_out, found = contrast["held_out"], dict[str, float]()
    for seed, pair in pairs_of(contrast, entries, seeds).items():
        for run in pair:
            if held_out not in run["held_out"]:
                raise RunError(f"{run['directory']}: was not evaluated on '{held_out}', which a contrast is about")
        ours, theirs = (run["held_out"][held_out]["nll"] for run in pair)
        found[str(seed)] = ours - theirs
    return found


def unplanned(contrasts: Sequence[Entry], entries: Sequence[Entry], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """The pairs of the contrasts on the held-out sets that none of them is about: differences, and no test."""
    key = ("arm", "against", "levels", "held_out")
    planned = [{name: contrast[name] for name in key} for contrast in contrasts]
    everywhere = [{**pair, "held_out": name} for name in _judged_on(entries[0]) for pair in planned] if entries else []
    found = [pair for index, pair in enumerate(everywhere) if pair not in [*planned, *everywhere[:index]]]
    measured_pairs = [{**pair, "by_seed": differences(pair, entries, seeds)} for pair in found]
    return [pair for pair in measured_pairs if pair["by_seed"]]


def measured(contrast: Entry, entries: Sequence[Entry], seeds: Sequence[int], level: float) -> dict[str, Any]:
    """The contrast with its differences, and what they say."""
    by_seed, margin = differences(contrast, entries, seeds), contrast["margin"]
    kept = {key: contrast[key] for key in ("arm", "against", "levels", "held_out", "primary", "margin")}
    return {**kept, **tested_sums(by_seed, margin, level)}


def tested_sums(by_seed: Mapping[str, float], margin: float | None, level: float) -> dict[str, Any]:
    """The numbers by seed, their summary, equivalence test and detectable difference, as far as there are."""
    values = list(by_seed.values())
    found: dict[str, Any] = {"by_seed": by_seed, "summary": None, "equivalence": None, "detectable": None}
    if len(values) < 2 or statistics.identical(values):
        return {**found, "under_powered": False}
    summary: dict[str, Any] = {
        **asdict(statistics.paired(values, 1 - level)),
        "level": level,
        "bootstrap": {
            "percentile": statistics.percentile_bootstrap(values, 1 - level),
            "bca": statistics.bca_bootstrap(values, 1 - level),
        },
    }
    found["summary"] = summary
    if summary["sd"] > 0.0:
        found["detectable"] = power.detectable_difference(len(values), summary["sd"], level)
    if margin is not None:
        found["equivalence"] = asdict(statistics.equivalence(values, margin, level))
    weak = margin is not None and found["detectable"] is not None and found["detectable"] > margin
    return {**found, "under_powered": weak}


def untested(contrast: Entry) -> bool:
    """Whether there are too few pairs, or no spread between them, so that no test has a p."""
    return contrast["summary"] is None or contrast["summary"]["t_p"] is None


def verdict(contrast: Entry, seeds: Sequence[int], level: float) -> str:
    summary, equivalence = contrast["summary"], contrast["equivalence"]
    if len(contrast["by_seed"]) < len(seeds):
        return "incomplete"
    if summary is None:
        return "identical"
    excluded = not untested(contrast) and not summary["low"] <= 0.0 <= summary["high"]
    if contrast["primary"] and excluded and summary["holm_p"] < level:
        return "lower" if summary["mean"] < 0 else "higher"
    if equivalence is not None and equivalence["equivalent"] and not excluded:
        return "equivalent"
    return "undecided" if contrast["primary"] else "described"


def words(contrast: Entry, seeds: Sequence[int], level: float) -> str:
    """The verdict as a sentence: what is claimed, a colon, its numbers."""
    arm, against, margin = contrast["arm"], contrast["against"], contrast["margin"]
    where = f"on {contrast['held_out']}{at_levels(contrast['levels'])}"
    summary, equivalence, pairs = contrast["summary"], contrast["equivalence"], len(contrast["by_seed"])
    kind, said = contrast["verdict"], [] if summary is None else [interval(summary)]
    if kind == "identical":
        claim = f"{arm} and {against} are identical {where}"
        said = [f"all {pairs} differences are exactly zero, so nothing is tested"]
    elif kind == "incomplete":
        claim = f"{arm} against {against} {where} is incomplete"
        said = [f"{pairs} of {len(seeds)} planned pairs", *(f"so far {numbers}" for numbers in said)]
    elif kind == "equivalent":
        claim = f"no difference between {arm} and {against} {where} at the planned margin of {margin:g}"
        said = [f"{confidence(2 * level)} interval {span(equivalence)} lies inside it", *said]
    elif kind in ("lower", "higher"):
        claim = f"{arm} has a {kind} NLL than {against} {where}"
        if equivalence is not None and equivalence["equivalent"]:
            said.append(f"the difference is inside the planned margin of {margin:g} all the same")
    elif kind == "described":
        claim = f"{arm} against {against} {where}, described and not judged"
        if untested(contrast):
            said.append("the differences have no spread")
        said += weakness(contrast)
    else:
        claim = f"undecided between {arm} and {against} {where}"
        said += doubts(contrast)
    return f"{claim}: {'; '.join(said)}"


def doubts(contrast: Entry) -> list[str]:
    """What an undecided contrast rules out and what it could not have seen."""
    summary, margin, equivalence = contrast["summary"], contrast["margin"], contrast["equivalence"]
    if untested(contrast):
        return ["the differences have no spread, so nothing can be tested"]
    found = [f"effects above {nats(max(abs(summary['low']), abs(summary['high'])), sign=False)} nats are excluded"]
    if not summary["low"] <= 0.0 <= summary["high"]:
        found.append("the interval excludes 0, but not after Holm's correction over the primary contrasts")
    if equivalence is not None and equivalence["equivalent"]:
        found.append(f"inside the planned margin of {margin:g} all the same by two one-sided tests")
    elif margin is not None:
        found.append(f"equivalence at the planned margin of {margin:g} is not shown")
    return found + weakness(contrast)


def weakness(contrast: Entry) -> list[str]:
    """What an under-powered contrast could have found."""
    if not contrast["under_powered"]:
        return []
    least = nats(contrast["detectable"], sign=False)
    return [f"under-powered: {least} nats would be found 4 times in 5, less more seldom"]


def interval(summary: Entry) -> str:
    """`mean -0.0301, 95 % interval [-0.0339, -0.0263], Holm p 0.0004, 5 pairs`."""
    p = f"Holm p {probability(summary['holm_p'])}, " if "holm_p" in summary else ""
    named = f"{confidence(summary['level'])} interval"
    return f"mean {nats(summary['mean'])}, {named} {span(summary)}, {p}{summary['pairs']} pairs"


def confidence(level: float) -> str:
    """`95 %` for an error rate of 0.05."""
    return f"{100 * (1 - level):.10g} %"


def span(interval: Entry) -> str:
    return f"[{nats(interval['low'])}, {nats(interval['high'])}]"


def nats(value: float, sign: bool = True) -> str:
    """Four decimals, or two digits of what those would call zero; an exact 0 is `0`."""
    if value == 0.0:
        return "0"
    plus, size = "+" if sign else "", abs(value)
    if size >= 0.00005:
        return f"{value:{plus}.4f}"
    return f"{value:{plus}.{1 - math.floor(math.log10(size))}f}" if size >= 1e-6 else f"{value:{plus}.1e}"


def probability(p: float) -> str:
    return f"{p:.4f}" if p >= 0.0001 else "< 0.0001"


def at_levels(levels: Mapping[str, str]) -> str:
    """` (size S, lr low)`, or nothing."""
    return f" ({', '.join(f'{factor} {level}' for factor, level in levels.items())})" if levels else ""
