"""What depth reads look like, as one page: one run, two side by side, or the arms of a study with seeds as error bars.

Reads the content of inspect.json and imports no torch. A group is an arm's runs, or a run alone: lines are means over a
group's runs, bars their t interval at 95 % where there are two runs or more.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import scipy.stats
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from depthroute.report.figures import MARKERS, Figure, canvas, fitted, loss_by_flops, rendered
from depthroute.report.heatmap import heat_map
from depthroute.report.page import Names
from depthroute.report.svg import COLOURS, SERIES
from depthroute.report.tables import NONE, Table, minus
from depthroute.study.seal import write_file

Entry = Mapping[str, Any]
Curve = Callable[[Entry], dict[int, float]]
PAGE = "inspect.html"


def write(content: Entry, directory: Path, title: str) -> Path:
    """Write the page of inspected runs into the directory. Returns its path."""
    environment = Environment(
        loader=PackageLoader("depthroute.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["minus"] = minus
    groups = content["groups"]
    html = environment.get_template("inspect.html.j2").render(
        title=title,
        facts=facts(groups),
        silent=[group["label"] for group in groups if not group["runs"][0]["summary"]["exposes_weights"]],
        table=summary_table(groups),
        maps=heat_maps(groups, Names()),
        figures=[figure for figure in line_figures(groups) if figure is not None],
        colours=list(COLOURS.items()),
        svg=Markup,
        absent=NONE,
    )
    write_file(directory / PAGE, html.encode())
    return directory / PAGE


def facts(groups: Sequence[Entry]) -> list[str]:
    inspected = [run for group in groups for run in group["runs"]]
    found = [f"{len(inspected)} runs" if len(inspected) > 1 else "1 run"]
    for text in dict.fromkeys(
        (run["text"], run["summary"]["tokens"], run["summary"]["documents"]) for run in inspected
    ):
        found.append(f"{text[1]:,} tokens of {text[2]:,} documents of {text[0]}")
    return found


def summary_table(groups: Sequence[Entry]) -> Table:
    """A group a row, means over its runs."""
    head = ["", "NLL", "added FLOPs", "JS of routes", "effective sources", "on embedding", "on live sum"]
    head += ["between tokens", "query norm"]
    rows: list[list[str]] = []
    for group in groups:
        inspected = group["runs"]
        reads = [row for run in inspected for row in run["tables"]["reads"]]
        numbers = [f"{mean(run['nll'] for run in inspected):.4f}", f"{inspected[0]['added_percent']:.2f} %"]
        numbers.append(divergence_words(inspected))
        for key in ("effective", "on_embedding", "on_live", "token_dependence", "query_norm"):
            known = [row[key] for row in reads if row[key] is not None]
            numbers.append(f"{mean(known):.3f}" if known else NONE)
        rows.append([group["label"], *numbers])
    return Table("summary", "Means over all reads", head, rows)


def divergence_words(inspected: Sequence[Entry]) -> str:
    """The mean over reads; its interval is over documents for one run, over runs for several."""
    found = [run["summary"]["divergence"] for run in inspected]
    if None in found:
        return NONE
    if len(found) == 1:
        centre, low, high = found[0]["mean"], found[0]["low"], found[0]["high"]
        half = None if low is None else (low, high)
    else:
        centre, reach = over_runs([one["mean"] for one in found])
        half = (centre - reach, centre + reach)
    return f"{centre:.4f}" + ("" if half is None else f" [{half[0]:.4f}, {half[1]:.4f}]")


def over_runs(values: Sequence[float]) -> tuple[float, float]:
    """The mean and half the t interval at 95 %; 0 for a single run."""
    if len(values) < 2:
        return values[0], 0.0
    return mean(values), float(scipy.stats.t.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5


def heat_maps(groups: Sequence[Entry], named: Names) -> list[list[Figure]]:
    """A row of figures a route, a figure a group."""
    routes = dict.fromkeys(row["route"] for group in groups for row in group["runs"][0]["tables"]["weights"])
    return [
        [depth_map(group, route, named("map", route, group["label"])) for group in groups if has(group, route)]
        for route in routes
    ]


def has(group: Entry, route: str) -> bool:
    return any(row["route"] == route for row in group["runs"][0]["tables"]["weights"])


def depth_map(group: Entry, route: str, name: str) -> Figure:
    by_run = [[row for row in run["tables"]["weights"] if row["route"] == route] for run in group["runs"]]
    first = by_run[0]
    sites = list(dict.fromkeys(row["site_name"] for row in first))
    longest = {row["column"]: row["source"] for row in first}
    cells: dict[tuple[int, int], tuple[float, str]] = {}
    for rows in zip(*by_run, strict=True):
        row, values = rows[0], [one["mean"] for one in rows]
        words = f"{row['site_name']}, {row['source']}: {mean(values):.3f}"
        if len(values) > 1:
            words += f" (over {len(values)} runs {min(values):.3f} to {max(values):.3f})"
        else:
            words += f" (median {row['q50']:.3f}, 5 to 95 % of tokens {row['q05']:.3f} to {row['q95']:.3f})"
        cells[sites.index(row["site_name"]), row["column"]] = (mean(values), words)
    label, columns = group["label"], [short(longest[column], column) for column in sorted(longest)]
    return heat_map(name, f"{label}, route {route}", "", sites, columns, cells)


def short(source: str, column: int) -> str:
    """`e`, `a3` and `m3` for a sublayer's output, `3` for a block or for its live sum."""
    kind, _, number = source.partition(" ")
    return {"embedding": "e", "attention": f"a{number}", "mlp": f"m{number}"}.get(kind, str(column))


def line_figures(groups: Sequence[Entry]) -> list[Figure | None]:
    """Everything by depth, a line a group."""
    found: list[Figure | None] = []
    for route in dict.fromkeys(row["route"] for row in every(groups, "reads")):
        for key, words, unit in (
            ("effective", "Effective sources", "exp of entropy"),
            ("query_norm", "Norm of queries", "gain folded in"),
            ("token_dependence", "Weights that differ between tokens", "share"),
        ):
            curve = by_depth("reads", "site", key, route=route)
            name = f"{key.replace('_', '-')}-{route}"
            found.append(lines(groups, name, f"{words}, route {route}", unit, "site", curve))
        shares = by_depth("distance", "distance", "share", route=route)
        words = f"Share by distance, route {route}"
        found.append(lines(groups, f"distance-{route}", words, "mean weight", "sources back from the newest", shares))
    for first, second in dict.fromkeys((row["first"], row["second"]) for row in every(groups, "divergence")):
        curve = by_depth("divergence", "site", "mean", first=first, second=second)
        words = f"Jensen-Shannon divergence of {first} and {second}"
        found.append(lines(groups, f"divergence-{first}-{second}", words, "nats, mean over tokens", "site", curve))
    for key, words in (("mixture_rms", "RMS of mixtures"), ("output_rms", "RMS of sublayer outputs")):
        curve = by_depth("depth", "site", key)
        found.append(lines(groups, key.replace("_", "-"), words, "mean over tokens", "site", curve))
    for part in ("attention", "mlp", "depth reads"):
        curve = by_depth("gradients", "layer", "norm", part=part)
        name, words = f"gradients-{part.replace(' ', '-')}", f"Gradient norm, {part}"
        found.append(lines(groups, name, words, "of the mean NLL", "layer", curve))
    points = {
        group["label"]: [(run["added_percent"], run["final"]["validation"]) for run in group["runs"]]
        for group in groups
    }
    marks = [(group["label"], colour_of(index), marker_of(index)) for index, group in enumerate(groups)]
    found.append(loss_by_flops("loss-by-flops", "NLL on validation by added FLOPs", points, marks))
    return found


def every(groups: Sequence[Entry], table: str) -> list[Entry]:
    return [row for group in groups for run in group["runs"] for row in run["tables"][table]]


def by_depth(table: str, depth: str, key: str, **where: str) -> Curve:
    """From a run to the numbers `key` of those rows of a table that are as `where` says, by site or layer."""

    def curve(run: Entry) -> dict[int, float]:
        rows = [row for row in run["tables"][table] if all(row[field] == value for field, value in where.items())]
        return {row[depth]: row[key] for row in rows if row[depth] is not None and row[key] is not None}

    return curve


def lines(groups: Sequence[Entry], name: str, title: str, unit: str, depth: str, curve: Curve) -> Figure | None:
    """A measure by depth, a line a group; None where no group has it."""
    drawn = [(index, group, [curve(run) for run in group["runs"]]) for index, group in enumerate(groups)]
    drawn = [(index, group, found) for index, group, found in drawn if all(found)]
    if not drawn:
        return None
    with canvas(205 + 15 * -(-len(drawn) // 2)) as drawing:
        axes: Axes = drawing.subplots()
        said: list[str] = []
        for index, group, found in drawn:
            xs = sorted(set.intersection(*(set(values) for values in found)))
            summed = [over_runs([values[x] for values in found]) for x in xs]
            middle = [centre for centre, _ in summed]
            colour, marker = colour_of(index), marker_of(index)
            axes.plot(
                xs, middle, color=colour, linewidth=1.2, marker=marker, markersize=4, label=fitted(group["label"], 24)
            )
            if len(found) > 1:
                low, high = ([centre + sign * half for centre, half in summed] for sign in (-1, 1))
                axes.vlines(xs, low, high, color=colour, linewidth=1.2)
            said.append(f"{group['label']} {min(middle):.3g} to {max(middle):.3g}")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_xlabel(depth)
        axes.set_ylabel(unit)
        drawing.legend(loc="outside lower left", ncols=2, handlelength=1.6, columnspacing=1.2)
        return Figure(name, title, "", rendered(drawing, name, title, "; ".join(said)))


def colour_of(index: int) -> str:
    return SERIES[index % len(SERIES)]


def marker_of(index: int) -> str:
    return MARKERS[index % len(MARKERS)]
