"""Results as text for a terminal or a log."""

from collections.abc import Mapping, Sequence
from typing import Any

from depthroute.study.results import held_out_names


def render(results: Mapping[str, Any]) -> str:
    """Held-out NLL by arm and seed, and paired differences from the baseline, one pair of tables a held-out set."""
    lines = [results["question"]]
    for name in held_out_names(results["runs"]):
        lines += ["", *losses(results, name), "", *differences(results, name)]
    if results["missing"]:
        lines += ["", "missing:"]
        lines += [
            f"  {run['arm']} seed {run['seed']}: step {run['step']} of {run['steps']}, log {run['log']}"
            if run["step"]
            else f"  {run['arm']} seed {run['seed']}: not one step yet"
            for run in results["missing"]
        ]
    return "\n".join(lines)


def losses(results: Mapping[str, Any], held_out: str) -> list[str]:
    seeds = results["seeds"]
    tokens = results["runs"][0]["held_out"][held_out]["tokens"]
    rows = [["arm", *(f"seed {seed}" for seed in seeds), "mean", "bits a byte", "tokens/s", "parameters"]]
    for arm in results["arms"]:
        entries = {run["seed"]: run for run in results["runs"] if run["arm"] == arm}
        complete = len(entries) == len(seeds)
        judged = [entries[seed]["held_out"][held_out] if seed in entries else None for seed in seeds]
        cells = [f"{part['nll']:.4f}" if part else "-" for part in judged]
        rows.append(
            [
                arm,
                *cells,
                _mean([part["nll"] for part in judged if part], 4) if complete else "-",
                _mean([part["bits_per_byte"] for part in judged if part], 4) if complete else "-",
                _mean([run["tokens_per_second"] for run in entries.values()], 0),
                f"{next(iter(entries.values()))['parameters']:,}" if entries else "-",
            ]
        )
    return [f"NLL on {held_out}, nats a token ({tokens:,} tokens, the same for every run)", *columns(rows)]


def differences(results: Mapping[str, Any], held_out: str) -> list[str]:
    rows = [["arm", *(f"seed {seed}" for seed in results["seeds"]), "mean", "95 % interval", "sign-flip p", "pairs"]]
    for entry in results["differences"]:
        if entry["held_out"] != held_out:
            continue
        by_seed, summary = entry["by_seed"], entry["summary"]
        cells = [f"{by_seed[str(seed)]:+.4f}" if str(seed) in by_seed else "-" for seed in results["seeds"]]
        if summary is None:
            rows.append([entry["arm"], *cells, "-", "one pair", "-", "1"])
            continue
        interval = f"[{summary['low']:+.4f}, {summary['high']:+.4f}]"
        p, pairs = f"{summary['sign_flip_p']:.4f}", str(summary["pairs"])
        rows.append([entry["arm"], *cells, f"{summary['mean']:+.4f}", interval, p, pairs])
    title = f"NLL minus {results['baseline']}'s at the same seed (below zero: fewer nats; t interval, exact p)"
    return [title, *(columns(rows) if len(rows) > 1 else ["  no pair is complete yet"])]


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, the others to the right."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]


def _mean(values: Sequence[float], digits: int) -> str:
    return f"{sum(values) / len(values):,.{digits}f}" if values else "-"
