"""One metric of a study's runs as two tables: values by arm and seed, and paired differences.

Differences are taken as in the study itself, for its own contrasts. None of them was planned on this text or task, so
all are described and nothing is judged; docs/statistics.md says what the numbers mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from depthroute.study import statistics
from depthroute.study.cells import cell_name
from depthroute.study.table import columns
from depthroute.study.verdict import confidence, nats, probability, span

Entry = Mapping[str, Any]


class Metric(NamedTuple):
    """A number of every run, by cell (an arm at its levels) and seed."""

    name: str
    values: Mapping[str, Mapping[int, float]]


def compare(metric: Metric, results: Entry) -> dict[str, Any]:
    """The metric and its paired differences as plain data, for every contrast of the study's results."""
    contrasts: list[dict[str, Any]] = []
    for arm, against in pairs(results):
        ours, theirs = metric.values.get(arm, {}), metric.values.get(against, {})
        by_seed = statistics.paired_differences(ours, theirs)
        values = list(by_seed.values())
        enough = len(values) >= 2 and not statistics.identical(values)
        summary = asdict(statistics.paired(values, 1 - results["level"])) if enough else None
        contrasts.append({"arm": arm, "against": against, "by_seed": by_seed, "summary": summary})
    return {"metric": metric.name, "values": metric.values, "contrasts": contrasts}


def pairs(results: Entry) -> list[tuple[str, str]]:
    """The cells that the study compares, each pair once, whatever text its own contrasts are about."""
    named = [
        (cell_name(contrast["arm"], contrast["levels"]), cell_name(contrast["against"], contrast["levels"]))
        for contrast in results["contrasts"]
    ]
    return list(dict.fromkeys(named))


def render(compared: Entry, results: Entry) -> list[str]:
    """Both tables as lines."""
    seeds: Sequence[int] = results["seeds"]
    values: Mapping[str, Mapping[int, float]] = compared["values"]
    header = [f"seed {seed}" for seed in seeds]
    rows = [["arm", *header, "mean"]]
    for cell, by_seed in values.items():
        complete = len(by_seed) == len(seeds)
        mean = f"{statistics.mean(list(by_seed.values())):.4f}" if complete else "-"
        rows.append([cell, *(f"{by_seed[seed]:.4f}" if seed in by_seed else "-" for seed in seeds), mean])
    differences = [["arm", "against", *header, "mean", "interval", "sign-flip p", "pairs"]]
    for contrast in compared["contrasts"]:
        by_seed, summary = contrast["by_seed"], contrast["summary"]
        row = [contrast["arm"], contrast["against"], *(nats(by_seed[s]) if s in by_seed else "-" for s in seeds)]
        if summary is None:
            same = "identical" if len(by_seed) >= 2 else "-"
            row += ["-", same, "-"]
        else:
            row += [nats(summary["mean"]), span(summary), probability(summary["sign_flip_p"])]
        differences.append([*row, str(len(by_seed))])
    return [
        compared["metric"],
        *columns(rows),
        "",
        f"{compared['metric']}, minus the other arm's at the same seed (t interval at "
        f"{confidence(results['level'])}, exact sign-flip p; described, not judged)",
        *columns(differences),
    ]
