"""The tables of a report: each once, as rows of text for the page and LaTeX, or of plain values for CSV."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from depthroute.study.gaps import AXES, noise_floor
from depthroute.study.table import held_out_names, level_sets, parity, repeat_words, runs_at, tuned_on
from depthroute.study.verdict import at_levels, confidence, nats, probability, span

Entry = Mapping[str, Any]
MINUS, NONE = "\N{MINUS SIGN}", "\N{EN DASH}"
LATEX = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    MINUS: "$-$",
    NONE: "--",
    "★": r"$\star$",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
}


@dataclass(frozen=True)
class Table:
    """`head` names the columns; the first of each row names it. `foot` of the rows, at the end, are summaries."""

    name: str
    title: str
    head: list[str]
    rows: list[list[str]]
    foot: int = 0

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.head) for row in self.rows), self.title

    def latex(self) -> str:
        """A booktabs tabular, for `\\input`."""
        lines = [[latex(cell) for cell in row] for row in (self.head, *self.rows)]
        body = [" & ".join(line) + r" \\" for line in lines]
        rule = len(body) - self.foot
        parts = [body[0], r"\midrule", *body[1:rule], *([r"\midrule", *body[rule:]] if self.foot else [])]
        note = f"% {' '.join(self.title.split())}; needs \\usepackage{{booktabs}}"
        begin = rf"\begin{{tabular}}{{l{'r' * (len(self.head) - 1)}}}"
        return "\n".join([note, begin, r"\toprule", *parts, r"\bottomrule", r"\end{tabular}", ""])


def latex(text: str) -> str:
    """Text that LaTeX prints as it is, with minus signs."""
    return "".join(LATEX.get(mark, mark) for mark in minus(text))


def minus(text: object) -> str:
    """A minus sign before a number, in place of a hyphen."""
    return re.sub(r"(?<![\w.])-(?=[\d.])", MINUS, str(text))


def contrast_table(results: Entry, name: str) -> Table:
    """What the planned rule rests on, a contrast a row, primary ones first."""
    share = confidence(results["level"])
    head = ["contrast", "held-out", "pairs", "mean", f"{share} interval", "repeats"]
    head += ["sign-flip p", "Holm p", "verdict"]
    rows: list[list[str]] = []
    for contrast in ordered(results):
        summary = contrast["summary"]
        floor = noise_floor(results["noise"], contrast)
        noise = NONE if floor is None else repeat_words(floor)
        numbers = [NONE, NONE, noise, NONE, NONE]
        if summary is not None:
            holm = probability(summary["holm_p"]) if "holm_p" in summary else NONE
            numbers = [nats(summary["mean"]), span(summary), noise, probability(summary["sign_flip_p"]), holm]
        pairs = f"{len(contrast['by_seed'])}"
        rows.append([label(contrast), contrast["held_out"], pairs, *numbers, contrast["verdict"]])
    return Table(name, "What the planned rule says, contrast by contrast", head, rows)


def strength_table(results: Entry, name: str) -> Table:
    """What each contrast can and cannot tell: equivalence, detectable difference, descriptive intervals."""
    narrow = confidence(2 * results["level"])
    head = ["contrast", "held-out", "SD", "margin", f"{narrow} interval", "equivalent", "TOST p", "t p", "detectable"]
    rows: list[list[str]] = []
    for contrast in ordered(results):
        summary, equivalence = contrast["summary"], contrast["equivalence"]
        if summary is None:
            continue
        tested = (
            [NONE] * 3
            if equivalence is None
            else [span(equivalence), "yes" if equivalence["equivalent"] else "no", _p(equivalence["p"])]
        )
        margin = NONE if contrast["margin"] is None else f"±{contrast['margin']:g}"
        row = [nats(summary["sd"], False), margin, *tested, _p(summary["t_p"])]
        least = contrast["detectable"]
        detectable = NONE if least is None else nats(least, False) + (" !" if contrast["under_powered"] else "")
        boot = [_span(summary["bootstrap"][kind]) for kind in ("percentile", "bca")]
        rows.append([label(contrast), contrast["held_out"], *row, detectable, *boot])
    return Table(name, "What it could have shown", [*head, "percentile bootstrap", "BCa bootstrap"], rows)


def equal_table(results: Entry, name: str) -> Table:
    """The last gap that can be read at equal tokens, FLOPs and time."""
    head = ["contrast", "held-out", "equal tokens", "equal FLOPs", "equal time"]
    rows: list[list[str]] = []
    for contrast in ordered(results):
        cells = [_last(_gap(results, contrast, axis)) for axis in AXES]
        if cells != [NONE] * 3:
            rows.append([label(contrast), contrast["held_out"], *cells])
    return Table(name, "The gap at equal tokens, training FLOPs and wall time", head, rows)


def crossing_table(results: Entry, name: str) -> Table:
    """What a level of a crossed factor changes in each arm, and between an arm and the baseline."""
    head = ["crossing", "held-out", "pairs", "mean", f"{confidence(results['level'])} interval", "margin"]
    head += [f"{confidence(2 * results['level'])} interval", "equivalent", "verdict"]
    rows: list[list[str]] = []
    for crossing in results["crossings"]:
        summary, equivalence = crossing["summary"], crossing["equivalence"]
        numbers = [NONE, NONE] if summary is None else [nats(summary["mean"]), span(summary)]
        margin = NONE if crossing["margin"] is None else f"±{crossing['margin']:g}"
        alike = (
            [NONE, NONE] if equivalence is None else [span(equivalence), "yes" if equivalence["equivalent"] else "no"]
        )
        named = f"{crossing['arm']} {MINUS} {crossing['against']}{at_levels(crossing['levels'])}"
        pairs = f"{len(crossing['by_seed'])}"
        rows.append([named, crossing["held_out"], pairs, *numbers, margin, *alike, crossing["verdict"]])
    return Table(name, "What a level changes in each arm, and between arms", head, rows)


def parity_table(results: Entry, name: str) -> Table:
    """How far each cell's implementation was from fp64 before anything trained."""
    head, *rows = parity(results) if results["parity"] is not None else [["cell"]]
    return Table(name, "Implementations against fp64: largest error, as a share of the largest number", head, rows)


def seed_tables(results: Entry, names: Iterator[str]) -> Iterator[Table]:
    """For each held-out set, the NLL and the paired differences with a seed a row."""
    for levels in level_sets(results):
        for held_out in held_out_names(results, levels):
            where = f"{held_out}{at_levels(levels)}{tuned_on(results, held_out)}"
            yield loss_table(results, levels, held_out, next(names), f"NLL on {where}, nats a token")
            table = difference_table(results, levels, held_out, next(names), f"Paired differences on {where}")
            if len(table.head) > 1:
                yield table


def loss_table(results: Entry, levels: Mapping[str, str], held_out: str, name: str, title: str) -> Table:
    arms, seeds = results["arms"], results["seeds"]
    runs = {(run["arm"], run["seed"]): run for run in runs_at(results, levels) if held_out in run["held_out"]}
    rows = [[str(seed), *(_of(runs.get((arm, seed)), held_out, "nll") for arm in arms)] for seed in seeds]
    complete = {arm: [runs[arm, seed] for seed in seeds if (arm, seed) in runs] for arm in arms}
    whole = {arm: found if len(found) == len(seeds) else [] for arm, found in complete.items()}
    for words, key in (("mean", "nll"), ("bits a byte", "bits_per_byte")):
        rows.append([words, *(_mean([run["held_out"][held_out][key] for run in whole[arm]]) for arm in arms)])
    rows.append(["tokens/s", *(_mean([run["tokens_per_second"] for run in complete[arm]], 0) for arm in arms)])
    rows.append(["parameters", *(f"{complete[arm][0]['parameters']:,}" if complete[arm] else NONE for arm in arms)])
    return Table(name, title, ["seed", *arms], rows, foot=4)


def difference_table(results: Entry, levels: Mapping[str, str], held_out: str, name: str, title: str) -> Table:
    """The planned contrasts, then the same pairs where they are judged elsewhere, with a seed a row."""
    here = [
        [pair for pair in results[kind] if (pair["levels"], pair["held_out"]) == (levels, held_out)]
        for kind in ("contrasts", "unplanned")
    ]
    found = [*here[0], *here[1]]
    rows = [
        [str(seed), *(nats(c["by_seed"][str(seed)]) if str(seed) in c["by_seed"] else NONE for c in found)]
        for seed in results["seeds"]
    ]
    whole = [list(c["by_seed"].values()) if len(c["by_seed"]) > 1 else [] for c in found]
    rows.append(["mean", *(nats(sum(values) / len(values)) if values else NONE for values in whole)])
    heads = [f"{c['arm']} {MINUS} {c['against']}{', not planned' if c in here[1] else ''}" for c in found]
    return Table(name, title, ["seed", *heads], rows, foot=1)


def noise_table(results: Entry, name: str) -> Table:
    names = list(dict.fromkeys(held_out for entry in results["noise"] for held_out in entry["difference"]))
    rows = [
        [
            f"{entry['arm']}{at_levels(entry['levels'])}, seed {entry['seed']}",
            *(nats(entry["difference"][held_out]) if held_out in entry["difference"] else NONE for held_out in names),
        ]
        for entry in results["noise"]
    ]
    return Table(name, "Noise floor: the same run once more, minus the run itself", ["run", *names], rows)


def tuning_table(results: Entry, name: str) -> Table:
    """What was tuned over which grid, a key of a cell a row; the chosen value stands in brackets."""
    rows: list[list[str]] = []
    for cell, entry in (results["tuning"] or {"cells": {}})["cells"].items():
        if not entry["tuned"]:
            rows.append([cell, "not tuned", NONE, NONE, NONE])
        for key, values in entry["grid"].items():
            edge = "on the edge" if key in entry["on_edge"] else "inside"
            chosen = str(entry["selected"].get(key, NONE))
            rows.append([cell, key, ", ".join(map(str, values)), chosen, edge])
    return Table(name, "Tuning: what each arm was given", ["arm", "key", "grid", "chosen", "place in the grid"], rows)


def data_files(results: Entry) -> dict[str, str]:
    """CSV by file name: every number of the report, one measurement a row."""
    keys = ["arm", "levels", "seed", "replicate"]
    files: dict[str, tuple[list[str], Iterable[Sequence[object]]]] = {
        "runs.csv": (RUN_HEAD, _run_rows(results)),
        "curves.csv": ([*keys, "held_out", "step", "tokens", "seconds", "flops", "nll"], _curve_rows(results)),
        "contrasts.csv": (CONTRAST_HEAD, _contrast_rows(results)),
        "differences.csv": (["arm", "against", "levels", "held_out", "seed", "difference"], _difference_rows(results)),
        "gaps.csv": (
            ["arm", "against", "levels", "held_out", "axis", "x", "mean", "low", "high", "interpolated"],
            _gap_rows(results),
        ),
    }
    if results["crossings"]:
        head = ["arm", "against", "kind", "levels", "held_out", "seed", "difference"]
        files["crossings.csv"] = (head, _crossing_rows(results))
    return {name: _csv(head, rows) for name, (head, rows) in files.items()}


RUN_HEAD = [
    *("arm", "levels", "seed", "replicate", "held_out", "nll", "bits_per_byte"),
    *("tokens_judged", "added_percent", "flags"),
]
CONTRAST_HEAD = [
    *("arm", "against", "levels", "held_out", "primary", "margin", "pairs", "mean", "sd", "low", "high"),
    *("sign_flip_p", "t_p", "holm_p", "percentile_low", "percentile_high", "bca_low", "bca_high"),
    *("equivalent", "detectable", "verdict", "words"),
]


def ordered(results: Entry) -> list[Entry]:
    return sorted(results["contrasts"], key=lambda contrast: not contrast["primary"])


def label(contrast: Entry) -> str:
    star = " ★" if contrast["primary"] else ""
    return f"{contrast['arm']} {MINUS} {contrast['against']}{at_levels(contrast['levels'])}{star}"


def _run_rows(results: Entry) -> Iterator[list[object]]:
    for run in results["runs"]:
        for name, part in run["held_out"].items():
            numbers = [part["nll"], part["bits_per_byte"], part["tokens"], run["added_percent"]]
            yield [*_key(run), name, *numbers, "; ".join(run["flags"])]


def _curve_rows(results: Entry) -> Iterator[list[object]]:
    for run in results["runs"]:
        for point in run["curve"]:
            flops = point["tokens"] * run["flops_per_token"]
            for name, nll in point["held_out"].items():
                yield [*_key(run), name, point["step"], point["tokens"], point["seconds"], flops, nll]


def _contrast_rows(results: Entry) -> Iterator[list[object]]:
    for c in results["contrasts"]:
        s = c["summary"] or {}
        boot = {kind: s.get("bootstrap", {}).get(kind) or (None, None) for kind in ("percentile", "bca")}
        yield [
            *(c["arm"], c["against"], _levels(c), c["held_out"], c["primary"], c["margin"], len(c["by_seed"])),
            *(s.get(key) for key in ("mean", "sd", "low", "high", "sign_flip_p", "t_p", "holm_p")),
            *(*boot["percentile"], *boot["bca"]),
            *(c["equivalence"] and c["equivalence"]["equivalent"], c["detectable"], c["verdict"], c["words"]),
        ]


def _difference_rows(results: Entry) -> Iterator[list[object]]:
    for c in (*results["contrasts"], *results["unplanned"]):
        for seed, value in c["by_seed"].items():
            yield [c["arm"], c["against"], _levels(c), c["held_out"], seed, value]


def _crossing_rows(results: Entry) -> Iterator[list[object]]:
    for c in results["crossings"]:
        for seed, value in c["by_seed"].items():
            yield [c["arm"], c["against"], c["kind"], _levels(c), c["held_out"], seed, value]


def _gap_rows(results: Entry) -> Iterator[list[object]]:
    for gap in results["gaps"]:
        for p in gap["points"]:
            named = [gap["arm"], gap["against"], _levels(gap), gap["held_out"], gap["axis"]]
            yield [*named, p["x"], p["mean"], p["low"], p["high"], gap["interpolated"]]


def _csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([head, *rows])
    return file.getvalue()


def _key(run: Entry) -> list[object]:
    return [run["arm"], _levels(run), run["seed"], run["replicate"]]


def _levels(entry: Entry) -> str:
    return " ".join(f"{factor}={level}" for factor, level in entry["levels"].items())


def _gap(results: Entry, contrast: Entry, axis: str) -> Entry | None:
    same = ("arm", "against", "levels", "held_out")
    found = (g for g in results["gaps"] if g["axis"] == axis and all(g[key] == contrast[key] for key in same))
    return next(found, None)


def _last(gap: Entry | None) -> str:
    if gap is None or not gap["points"]:
        return NONE
    point = gap["points"][-1]
    share = f" at {point['x'] / gap['end']:.0%}" if gap["left_out"] else ""
    return nats(point["mean"]) + ("" if point["low"] is None else f" {span(point)}") + share


def _p(value: float | None) -> str:
    return NONE if value is None else probability(value)


def _of(run: Entry | None, held_out: str, key: str) -> str:
    return NONE if run is None else f"{run['held_out'][held_out][key]:.4f}"


def _mean(values: Sequence[float], digits: int = 4) -> str:
    return f"{sum(values) / len(values):,.{digits}f}" if values else NONE


def _span(ends: Sequence[float] | None) -> str:
    return NONE if ends is None else f"[{nats(ends[0])}, {nats(ends[1])}]"
