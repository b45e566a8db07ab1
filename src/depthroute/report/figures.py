"""The figures of a report: paired dots, curves with every seed, and the gap along training.

Drawn by matplotlib as SVG, 340 units wide: a phone shows one at its size, a desk three in a row, paper stays sharp, and
a figure takes tens of kilobytes where an interactive library would add megabytes to every page.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import EngFormatter, MaxNLocator

from depthroute.report.svg import INK, MUTED, RULE, SERIES, SHADE, finished
from depthroute.report.tables import MINUS
from depthroute.study.gaps import AXES, noise_floor
from depthroute.study.table import runs_at
from depthroute.study.verdict import at_levels, interval, nats

Entry = Mapping[str, Any]
WIDTH = 340
MARKERS = "osD^vPX*<>"
LABEL = 40
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "depthroute",
    "text.parse_math": False,
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": RULE,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelsize": 10,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "lines.solid_capstyle": "round",
}
AT_EQUAL = {"tokens": "tokens", "flops": "training FLOPs", "seconds": "seconds of training"}


@dataclass(frozen=True)
class Figure:
    """`svg` is one element whose colours are CSS variables; `name` names its file, `title` and `note` its caption."""

    name: str
    title: str
    note: str
    svg: str


def paired_dots(results: Entry, levels: Mapping[str, str], held_out: str, name: str) -> Figure | None:
    """Every seed's difference, its mean and its interval, a contrast a row; None where no pair is complete."""
    found = [c for c in results["contrasts"] if (c["levels"], c["held_out"]) == (levels, held_out) and c["by_seed"]]
    if not found:
        return None
    with canvas(58 + 40 * len(found)) as drawing:
        axes = drawing.subplots()
        floors = [noise_floor(results["noise"], contrast) or 0.0 for contrast in found]
        for row, floor in enumerate(floors):
            # Without a repeat, or with one to the same bits, this has no width.
            axes.fill_betweenx([row - 0.2, row + 0.4], -floor, floor, color=SHADE, linewidth=0)
        axes.axvline(0, color=INK, linewidth=0.8)
        for row, contrast in enumerate(found):
            draw_contrast(axes, contrast, row, colour_of(results, contrast["arm"]))
        axes.set_ylim(len(found) - 0.4, -0.75)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.06)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel("difference in NLL, nats a token  (left: fewer)")
        title = f"Paired differences on {held_out}{at_levels(levels)}"
        lines = [f"{c['arm']} minus {c['against']}: {said(c)}" for c in found]
        shaded = f"Shaded: what a repeat of a run differed by, at most {nats(max(floors), False)}."
        note = shaded if max(floors) else ""
        return Figure(name, title, note, rendered(drawing, name, title, "; ".join(lines)))


def draw_contrast(axes: Axes, contrast: Entry, row: int, colour: str) -> None:
    values, summary, margin = list(contrast["by_seed"].values()), contrast["summary"], contrast["margin"]
    label = f"{contrast['arm']} {MINUS} {contrast['against']}"
    strong = "bold" if contrast["primary"] else "normal"
    place = axes.get_yaxis_transform()
    axes.text(0, row - 0.34, fitted(label), transform=place, weight=strong, va="center", fontsize=9.5)
    axes.text(1, row - 0.34, contrast["verdict"], transform=place, color=MUTED, ha="right", va="center", fontsize=9.5)
    if margin is not None:
        axes.vlines([-margin, margin], row - 0.12, row + 0.32, color=MUTED, linewidth=1, linestyles=(0, (2, 1.5)))
    if summary is not None:
        ends = [summary["low"], summary["high"]]
        axes.plot(ends, [row + 0.1] * 2, color=colour, linewidth=6, alpha=0.3, solid_capstyle="butt")
        axes.plot([summary["mean"]], [row + 0.1], marker="D", markersize=6.5, color=colour)
    axes.scatter(
        values, [row + 0.1] * len(values), s=24, facecolors="none", edgecolors=colour, linewidths=1.1, zorder=3
    )


def curves(results: Entry, levels: Mapping[str, str], held_out: str, name: str) -> Figure | None:
    """NLL by tokens: a thin line a run, markers at an arm's mean; None where no run has two milestones."""
    entries = [run for run in runs_at(results, levels) if len(after_start(run, held_out)) > 1]
    if not entries:
        return None
    arms = [arm for arm in results["arms"] if any(run["arm"] == arm for run in entries)]
    columns = 1 if any(len(arm) > 20 for arm in arms) else 2
    legend = 15 * -(-len(arms) // columns)
    with canvas(250 + legend) as drawing:
        axes = drawing.subplots()
        for arm in arms:
            lines = [after_start(run, held_out) for run in entries if run["arm"] == arm]
            colour, marker = colour_of(results, arm), marker_of(results, arm)
            for line in lines:
                axes.plot(*zip(*line, strict=True), color=colour, linewidth=0.7, alpha=0.6)
            shared = [x for x, _ in lines[0] if all(x in dict(line) for line in lines)]
            means = [sum(dict(line)[x] for line in lines) / len(lines) for x in shared]
            label = fitted(arm, LABEL if columns == 1 else 24)
            axes.plot(shared, means, color=colour, marker=marker, markersize=4.5, linewidth=1.2, label=label)
        spending_axis(axes, [x for run in entries for x, _ in after_start(run, held_out)], "training tokens")
        axes.set_ylabel("NLL, nats a token")
        drawing.legend(loc="outside lower left", ncols=columns, handlelength=1.6, columnspacing=1.2)
        title = f"NLL on {held_out}{at_levels(levels)} by tokens"
        ends = [f"{arm} {last_mean(entries, arm, held_out):.4f}" for arm in arms]
        return Figure(name, title, "", rendered(drawing, name, title, "Mean at the end: " + ", ".join(ends)))


def costs(results: Entry, levels: Mapping[str, str], held_out: str, name: str) -> Figure | None:
    """NLL at the end by the FLOPs that an arm adds to the Transformer; None for less than two arms."""
    points: dict[str, list[tuple[float, float]]] = {arm: [] for arm in results["arms"]}
    for run in runs_at(results, levels):
        if held_out in run["held_out"]:
            points[run["arm"]].append((run["added_percent"], run["held_out"][held_out]["nll"]))
    marks = [(arm, colour_of(results, arm), marker_of(results, arm)) for arm in results["arms"] if points[arm]]
    title = f"NLL on {held_out}{at_levels(levels)} by added FLOPs"
    return loss_by_flops(name, title, points, marks)


def loss_by_flops(
    name: str, title: str, points: Mapping[str, Sequence[tuple[float, float]]], marks: Sequence[tuple[str, str, str]]
) -> Figure | None:
    """`points` hold, by arm, every run's added FLOPs in percent and NLL; `marks` are arms with colour and marker."""
    if len(marks) < 2:
        return None
    columns = 1 if any(len(arm) > 20 for arm, _, _ in marks) else 2
    with canvas(215 + 15 * -(-len(marks) // columns)) as drawing:
        axes = drawing.subplots()
        ends: list[str] = []
        for arm, colour, marker in marks:
            at, losses = points[arm][0][0], [nll for _, nll in points[arm]]
            mean = sum(losses) / len(losses)
            axes.vlines([at], min(losses), max(losses), color=colour, linewidth=1.4)
            label = fitted(arm, LABEL if columns == 1 else 24)
            axes.plot([at], [mean], color=colour, marker=marker, markersize=5, linestyle="", label=label)
            ends.append(f"{arm} {at:.3f} %, {mean:.4f}")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel("added forward FLOPs, percent")
        axes.set_ylabel("NLL, nats a token")
        drawing.legend(loc="outside lower left", ncols=columns, handlelength=1.2, columnspacing=1.2)
        note = "A mark at the mean of an arm, a bar from its best run to its worst; FLOPs by the papers' convention."
        return Figure(name, title, note, rendered(drawing, name, title, "; ".join(ends)))


def gaps(results: Entry, contrast: Entry, name: str) -> Figure | None:
    """The gap of one contrast at equal tokens, FLOPs and time, stacked; None where no axis has two milestones."""
    same = ("arm", "against", "levels", "held_out")
    found = [gap for gap in results["gaps"] if all(gap[key] == contrast[key] for key in same)]
    found = [gap for axis in AXES for gap in found if gap["axis"] == axis and len(gap["points"]) > 1]
    if not found:
        return None
    with canvas(30 + 125 * len(found)) as drawing:
        for row, gap in enumerate(found):
            axes = drawing.add_subplot(len(found), 1, row + 1)
            draw_gap(axes, gap, colour_of(results, contrast["arm"]), marker_of(results, contrast["arm"]))
        drawing.supylabel("difference in NLL, nats a token", fontsize=10, color=MUTED)
        against, where = contrast["against"], f"on {contrast['held_out']}{at_levels(contrast['levels'])}"
        title = f"{contrast['arm']} {MINUS} {against} {where} along training"
        ends = [f"at equal {AT_EQUAL[gap['axis']]} {nats(gap['points'][-1]['mean'])}" for gap in found]
        note = " ".join(left_out(found))
        return Figure(name, title, note, rendered(drawing, name, title, "Last mean " + ", ".join(ends)))


def draw_gap(axes: Axes, gap: Entry, colour: str, marker: str) -> None:
    points = gap["points"]
    xs = [point["x"] for point in points]
    axes.axhline(0, color=INK, linewidth=0.8)
    for seed in points[0]["by_seed"]:
        axes.plot(xs, [point["by_seed"][seed] for point in points], color=colour, linewidth=0.6, alpha=0.5)
    axes.plot(xs, [point["mean"] for point in points], color=colour, linewidth=1.6, marker=marker, markersize=4.5)
    if points[0]["low"] is not None:
        low, high = [point["low"] for point in points], [point["high"] for point in points]
        axes.vlines(xs, low, high, color=colour, linewidth=1.6)
    axes.set_title(f"at equal {AT_EQUAL[gap['axis']]}", loc="left", fontsize=9.5, color=INK)
    spending_axis(axes, xs, "")
    if gap["axis"] == "seconds":
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.yaxis.set_major_locator(MaxNLocator(4))


def left_out(found: Sequence[Entry]) -> Iterator[str]:
    for gap in found:
        if gap["interpolated"]:
            reached = f"{gap['points'][-1]['x'] / gap['end']:.0%}"
            beyond = f", up to {reached} of the other's training" if gap["left_out"] else ""
            yield f"At equal {AT_EQUAL[gap['axis']]} {gap['interpolated']} is read between its milestones{beyond}."


def spending_axis(axes: Axes, xs: Sequence[float], label: str) -> None:
    """Logarithmic where the milestones span more than a factor of eight."""
    if max(xs) > 8 * min(xs):
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(lambda *_: "")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel(label)


def after_start(run: Entry, held_out: str) -> list[tuple[float, float]]:
    """Tokens and NLL at the milestones after the first step: before it, every arm is as far as every other."""
    return [
        (float(point["tokens"]), point["held_out"][held_out])
        for point in run["curve"]
        if point["tokens"] > 0 and held_out in point["held_out"]
    ]


def last_mean(entries: Sequence[Entry], arm: str, held_out: str) -> float:
    values = [run["held_out"][held_out]["nll"] for run in entries if run["arm"] == arm]
    return sum(values) / len(values)


def said(contrast: Entry) -> str:
    return contrast["verdict"] if contrast["summary"] is None else interval(contrast["summary"])


def colour_of(results: Entry, arm: str) -> str:
    """The baseline is neutral; the other arms have their own."""
    others = [other for other in results["arms"] if other != results["baseline"]]
    return MUTED if arm == results["baseline"] else SERIES[others.index(arm) % len(SERIES)]


def marker_of(results: Entry, arm: str) -> str:
    return MARKERS[results["arms"].index(arm) % len(MARKERS)]


def fitted(text: str, length: int = LABEL) -> str:
    """The text, or its two ends around an ellipsis."""
    half = length // 2 - 1
    return text if len(text) <= length else f"{text[:half]} … {text[-half:]}"


@contextmanager
def canvas(height: int) -> Iterator[Canvas]:
    """A drawing of `WIDTH` by `height` units under this module's style, and no other state of matplotlib's."""
    with rc_context(STYLE):
        yield Canvas(figsize=(WIDTH / 72, height / 72), layout="constrained")


def rendered(drawing: Canvas, name: str, title: str, description: str) -> str:
    file = io.StringIO()
    FigureCanvasSVG(drawing).print_svg(file, metadata={"Date": None})
    return finished(file.getvalue(), name, title, description)
