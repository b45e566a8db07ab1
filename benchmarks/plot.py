"""Draws benchmarks/speed.svg from benchmarks/read.json and benchmarks/step.json.

depthroute bench read --out benchmarks/read.json
depthroute bench step --out benchmarks/step.json
python benchmarks/plot.py
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

HERE = Path(__file__).parent


def bars(axes: Axes, names: Sequence[str], intervals: Sequence[Sequence[float]], title: str) -> None:
    """One bar a name from 0 to its median, with its interval."""
    places = range(len(names))
    medians = [one[0] for one in intervals]
    errors = [[value - low for value, low, _ in intervals], [high - value for value, _, high in intervals]]
    axes.barh(places, medians, xerr=errors, color="#4c78a8", ecolor="#333333", height=0.6)
    axes.axvline(1, color="#333333", linewidth=0.8)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def reads(found: dict[str, Any], direction: str) -> tuple[list[str], list[list[float]]]:
    rows = [row for row in found["reads"] if row.get("direction") == direction and row["queries"] == 1]
    rows.sort(key=lambda row: row["against_floor"][0])
    return [row["reader"] for row in rows], [row["against_floor"] for row in rows]


def main() -> None:
    read, step = (json.loads((HERE / f"{name}.json").read_text(encoding="utf-8")) for name in ("read", "step"))
    plt.rcParams["svg.hashsalt"] = "depthroute"
    figure, (forward, both, steps) = plt.subplots(3, 1, figsize=(7, 9), layout="constrained")
    bars(forward, *reads(read, "forward"), "Time of a forward read, of the bytes it must move at a copy's speed (log)")
    title = "Forward and backward, of the bytes they must move at a copy's speed (log)"
    bars(both, *reads(read, "forward+backward"), title)
    for axes in (forward, both):
        axes.set_xscale("log")
    rows = step["steps"]
    bars(
        steps, [row["preset"] for row in rows], [row["time_ratio"] for row in rows], "Training step, of PreNorm's time"
    )
    steps.set_xlim(left=0.9)
    figure.savefig(HERE / "speed.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
