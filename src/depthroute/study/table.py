"""Results as text for a terminal or a log, and the rows that every other form of the tables is made of."""

from collections.abc import Mapping, Sequence
from typing import Any

from depthroute.study.verdict import at_levels, confidence, included, nats, probability, span

Entry = Mapping[str, Any]
Rows = list[list[str]]
CROSSINGS = "a factor's level minus its first, in each arm and between arms, at the same seed (NLL, nats a token)"
PARITY = "largest error against fp64, as a share of the largest number"


def render(results: Entry) -> str:
    """The verdicts, held-out NLL by arm and seed, and paired differences, one pair of tables a held-out set."""
    lines = [results["question"], "", *verdict_lines(results)]
    for levels in level_sets(results):
        for name in held_out_names(results, levels):
            lines += ["", losses_title(results, levels, name), *columns(losses(results, levels, name))]
            rows = differences(results, levels, name)
            if len(rows) > 1:
                lines += ["", differences_title(results, levels, name), *columns(rows)]
    if results["crossings"]:
        lines += ["", CROSSINGS, *columns(crossings(results))]
    if results["parity"] is not None:
        lines += ["", PARITY, *columns(parity(results))]
    if results["noise"]:
        lines += ["", "repeated runs differ from the run itself by (NLL, nats a token):", *columns(repeats(results))]
    if results["flagged"]:
        what = "counted all the same" if results["include_flagged"] else "left out of every number above"
        lines += ["", f"flagged, {what}:"]
        lines += [f"  {run['directory']}: {'; '.join(run['flags'])}" for run in results["flagged"]]
    if results["missing"]:
        lines += ["", "missing:", *(f"  {_missing(run)}" for run in results["missing"])]
    return "\n".join(lines)


def verdict_lines(results: Entry) -> list[str]:
    """One sentence a contrast, the primary ones first and marked; then how the plan was amended and what was tuned."""
    ordered = sorted(results["contrasts"], key=lambda contrast: not contrast["primary"])
    said = [f"{'primary: ' if contrast['primary'] else ''}{contrast['words']}" for contrast in ordered]
    said += [crossing["words"] for crossing in results["crossings"]]
    return said + amendment_lines(results) + [f"warning: {words}" for words in tuning_warnings(results)]


def tuning_warnings(results: Entry) -> list[str]:
    """What a reader must know of how the arms were tuned, or that none was."""
    if results["tuning"] is None:
        return ["no arm was tuned: a difference may be one of settings that suit one arm better"]
    return results["tuning"]["warnings"]


def amendment_lines(results: Entry) -> list[str]:
    """How often the plan was amended and how late; nothing where it never was."""
    amendments = results["provenance"]["amendments"]
    if not amendments:
        return []
    last = amendments[-1]
    lines = [f"plan amended {times(len(amendments))}; the last when {when(last)}: {last['why']}"]
    late = [one for one in amendments if one["runs_finished"]]
    if any(_rejudges(line) for one in late for line in one["changes"]):
        lines.append(
            "warning: contrasts, crossings, margins, seeds or the level were changed after runs had finished, so not "
            "all verdicts were fixed beforehand"
        )
    return lines


def when(amendment: Entry) -> str:
    planned = f" of {amendment['runs_planned']}" if "runs_planned" in amendment else ""
    return f"{amendment['runs_finished']}{planned} runs were finished"


def times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _rejudges(change: str) -> bool:
    judging = ("contrast", "crossing", "seed")
    return change.startswith(("significance", *(f"{what} {of}" for what in ("adds", "removes") for of in judging)))


def repeat_words(floor: float) -> str:
    """What a repeated run showed, for a reader."""
    return f"a repeat differed by at most {nats(floor, False)}" if floor else "a repeat gave the same bits"


def level_sets(results: Entry) -> list[dict[str, str]]:
    """Every combination of levels that a run or a contrast has, in their order."""
    found: list[dict[str, str]] = []
    for entry in (*results["runs"], *results["contrasts"]):
        if entry["levels"] not in found:
            found.append(entry["levels"])
    return found


def held_out_names(results: Entry, levels: Mapping[str, str]) -> list[str]:
    """The sets of the contrasts first, then those that runs were evaluated on beside."""
    found: dict[str, None] = {}
    for contrast in results["contrasts"]:
        if contrast["levels"] == levels:
            found[contrast["held_out"]] = None
    for run in runs_at(results, levels):
        found |= dict.fromkeys(run["held_out"])
    return list(found)


def runs_at(results: Entry, levels: Mapping[str, str]) -> list[Entry]:
    """The runs that count: no replicates, and flagged ones only where they were asked for."""
    entries = included(results["runs"], results["include_flagged"])
    return [entry for entry in entries if entry["levels"] == levels and entry["replicate"] == 0]


def tuned_on(results: Entry, held_out: str) -> str:
    """A mark for the set that values were chosen on: what was chosen on a text looks good there."""
    tuning = results["tuning"]
    return " (tuned on)" if tuning is not None and tuning["plan"]["held_out"] == held_out else ""


def losses_title(results: Entry, levels: Mapping[str, str], held_out: str) -> str:
    judged = [run["held_out"][held_out]["tokens"] for run in runs_at(results, levels) if held_out in run["held_out"]]
    same = f" ({judged[0]:,} tokens, the same for every run)" if judged else ""
    return f"NLL on {held_out}{at_levels(levels)}{tuned_on(results, held_out)}, nats a token{same}"


def losses(results: Entry, levels: Mapping[str, str], held_out: str) -> Rows:
    """A header, then an arm a row: NLL by seed, their mean where all are there, bits a byte, speed, size."""
    seeds = results["seeds"]
    rows = [["arm", *(f"seed {seed}" for seed in seeds), "mean", "bits a byte", "tokens/s", "parameters"]]
    for arm in results["arms"]:
        entries = {run["seed"]: run for run in runs_at(results, levels) if run["arm"] == arm}
        judged = [entries[seed]["held_out"].get(held_out) if seed in entries else None for seed in seeds]
        complete = [part for part in judged if part] if all(judged) else []
        rows.append(
            [
                arm,
                *(f"{part['nll']:.4f}" if part else "-" for part in judged),
                _mean([part["nll"] for part in complete], 4),
                _mean([part["bits_per_byte"] for part in complete], 4),
                _mean([run["tokens_per_second"] for run in entries.values()], 0),
                f"{next(iter(entries.values()))['parameters']:,}" if entries else "-",
            ]
        )
    return rows


def differences_title(results: Entry, levels: Mapping[str, str], held_out: str) -> str:
    return (
        f"NLL on {held_out}{at_levels(levels)} minus the other arm's at the same seed (below zero: fewer nats; "
        f"t interval at {confidence(results['level'])}, exact sign-flip p)"
    )


def differences(results: Entry, levels: Mapping[str, str], held_out: str) -> Rows:
    """A header, then a contrast a row: difference by seed and what the planned tests say; last the unplanned pairs."""
    seeds = results["seeds"]
    tests = ["mean", "interval", "sign-flip p", "Holm p", "pairs", "verdict"]
    rows = [["arm", "against", *(f"seed {seed}" for seed in seeds), *tests]]
    for contrast in results["contrasts"]:
        if contrast["held_out"] != held_out or contrast["levels"] != levels:
            continue
        by_seed, summary = contrast["by_seed"], contrast["summary"]
        row = [contrast["arm"] + (" *" if contrast["primary"] else ""), contrast["against"]]
        row += [nats(by_seed[str(seed)]) if str(seed) in by_seed else "-" for seed in seeds]
        if summary is None:
            row += ["-", "-", "-", "-"]
        else:
            row += [nats(summary["mean"]), span(summary), probability(summary["sign_flip_p"])]
            row += [probability(summary["holm_p"]) if contrast["primary"] else "-"]
        rows.append([*row, str(len(by_seed)), contrast["verdict"]])
    for pair in results["unplanned"]:
        if (pair["held_out"], pair["levels"]) == (held_out, levels):
            values = pair["by_seed"]
            row = [pair["arm"], pair["against"], *(nats(values[str(s)]) if str(s) in values else "-" for s in seeds)]
            mean = nats(sum(values.values()) / len(values))
            rows.append([*row, mean, "-", "-", "-", str(len(values)), "not planned"])
    return rows


def crossings(results: Entry) -> Rows:
    """A header, then an effect or an interaction a row: by seed, and what the planned tests say."""
    seeds = results["seeds"]
    rows = [["crossing", "held-out", *(f"seed {seed}" for seed in seeds), "mean", "interval", "pairs", "verdict"]]
    for crossing in results["crossings"]:
        by_seed, summary = crossing["by_seed"], crossing["summary"]
        row = [f"{crossing['arm']} minus {crossing['against']}{at_levels(crossing['levels'])}", crossing["held_out"]]
        row += [nats(by_seed[str(seed)]) if str(seed) in by_seed else "-" for seed in seeds]
        row += ["-", "-"] if summary is None else [nats(summary["mean"]), span(summary)]
        rows.append([*row, str(len(by_seed)), crossing["verdict"]])
    return rows


def parity(results: Entry) -> Rows:
    """A header, then a cell a row: how far its implementation is from fp64, and how far it may be."""
    rows = [["cell", "implementation", "precision", "mixtures", "gradients", "tolerance"]]
    for entry in results["parity"]["entries"]:
        errors = ["not finite" if entry[key] is None else f"{entry[key]:.1e}" for key in ("forward", "gradient")]
        limit = f"{results['parity']['tolerance'][entry['precision']]:g}"
        rows.append([entry["cell"], entry["impl"], entry["precision"], *errors, limit])
    return rows


def repeats(results: Entry) -> Rows:
    """A header, then a replicate a row: its difference from the run that it repeats, by held-out set."""
    names = list(dict.fromkeys(name for entry in results["noise"] for name in entry["difference"]))
    rows = [["run", *names]]
    for entry in results["noise"]:
        run = f"{entry['arm']}{at_levels(entry['levels'])} seed {entry['seed']}, again ({entry['replicate']})"
        rows.append([run, *(nats(entry["difference"][name]) if name in entry["difference"] else "-" for name in names)])
    return rows


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


def _missing(run: Entry) -> str:
    again = f", again ({run['replicate']})" if run["replicate"] else ""
    name = f"{run['arm']}{at_levels(run['levels'])} seed {run['seed']}{again}"
    if not run["step"] and run["state"] == "not started":
        return f"{name}: no step yet"
    return f"{name}: {run['state']} at step {run['step']} of {run['steps']}, log {run['log']}"


def _mean(values: Sequence[float], digits: int) -> str:
    return f"{sum(values) / len(values):,.{digits}f}" if values else "-"
