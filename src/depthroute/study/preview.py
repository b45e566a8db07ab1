"""A plan as text: what will run, what it will be judged by, and what it can detect."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from depthroute.study.cells import Planned
from depthroute.study.execute import at_a_time
from depthroute.study.measure import known_speeds, measured_speed, seconds_left
from depthroute.study.plan import Study
from depthroute.study.tuning import planned, tuning_runs
from depthroute.train.progress import duration

WIDTH, INDENT = 116, 12


def render(plan: Mapping[str, Any]) -> str:
    """The content of prereg.json for a reader."""
    arms = [f"{arm} (baseline)" if arm == plan["baseline"] else arm for arm in plan["arms"]]
    rows: list[tuple[str, str]] = [("arms", ", ".join(arms))]
    rows += [("cross", f"{factor}: {', '.join(levels)}") for factor, levels in plan["cross"].items()]
    rows += [
        ("seeds", ", ".join(map(str, plan["seeds"]))),
        ("run", f"{_numbers(plan['tokens'])} tokens; {plan['metric']}, at {_numbers(plan['milestones'])}"),
        ("held out", ", ".join(plan["held_out"])),
        *_tuning(plan["tuning"]),
        *(("contrast", _contrast(contrast)) for contrast in plan["contrasts"]),
        *(("crossing", _crossing(crossing, plan["cross"])) for crossing in plan.get("crossings", [])),
        *_parity(plan),
        ("rule", plan["decision_rule"]),
        *(("power", line) for line in plan["power"]["words"]),
        *(("again", f"{_cell(one)} seed {one['seed']}") for one in plan["replicates"]),
        *(("amended", f"{one['date']}: {one['why']} ({'; '.join(one['changes'])})") for one in plan["amendments"]),
        ("digest", f"{plan['digest']}, planned {plan['date']} UTC"),
    ]
    lines, before = [plan["question"], ""], ""
    for name, text in rows:
        wrapped = textwrap.wrap(text, WIDTH - INDENT, break_long_words=False)
        lines += [f"{'' if name == before else name:{INDENT}}{wrapped[0]}"]
        lines += [f"{'':{INDENT}}{line}" for line in wrapped[1:]]
        before = name
    return "\n".join(lines)


def amount(study: Study, directory: Path, data: Path, data_root: Path, measure: bool) -> list[str]:
    """How many runs there are, and how long they take as far as that is known: from earlier runs, or measured now."""
    tune, main = tuning_runs(study), planned(study, directory)
    again = sum(run.replicate > 0 for run in main)
    tokens = sum(run.config.tokens for run in [*tune, *main])
    counts = [f"{len(tune)} of tuning"] if tune else []
    counts += [f"{len(main) - again} of {len({run.cell for run in main})} configurations"]
    counts += [f"{again} replicate{'s' if again > 1 else ''}"] if again else []
    lines = [f"{'runs':{INDENT}}{', '.join(counts)}; {tokens:,} tokens in all"]
    speeds = known_speeds([*tune, *main], directory)
    lacking = {run.cell: run for run in main if run.cell not in speeds}
    if lacking and not measure:
        return [*lines, f"{'time':{INDENT}}not known yet; --measure trains a few steps of every configuration to tell"]
    speeds |= {cell: measured_speed(run, data_root) for cell, run in lacking.items()}
    workers = study.workers or at_a_time(main[0].config)
    left = seconds_left([*tune, *main], directory, data, speeds, workers)
    slow, fast = min(speeds.values()), max(speeds.values())
    return [
        *lines,
        f"{'time':{INDENT}}about {duration(left)} left with {workers} at a time that do not slow each other down "
        f"({slow:,.0f} to {fast:,.0f} tokens/s each)",
    ]


def standing(plan: Sequence[Planned], found: Mapping[str, Any], at_work: bool) -> list[str]:
    """One line of counts, and one for each run that failed. `found` is `state.progress` of the plan."""
    kind = "tuning" if plan[0].point is not None else "runs"
    begun = "under way" if at_work else "interrupted"
    counts = [f"{found['finished']} of {found['runs']} complete"]
    counts += [f"{found[name]} {name}" for name in ("diverged", "failed") if found[name]]
    counts += [f"{found['interrupted']} {begun}"] if found["interrupted"] else []
    counts += [f"{found['not started']} not started"] if found["not started"] else []
    lines = [f"{kind}: {', '.join(counts)}"]
    for failure in found["failures"]:
        last = failure["lines"][-1] if failure["lines"] else "it left no message"
        lines.append(f"  {failure['run']} {failure['state']}, log {failure['log']}: {last}")
    return lines


def _tuning(tuning: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if tuning is None:
        return [("tuning", "none: every arm is compared as base and its own keys have it")]
    seeds = ", ".join(map(str, tuning["seeds"]))
    rows = [("tuning", f"seeds {seeds}, {tuning['tokens']:,} tokens a run, chosen on {tuning['held_out']}")]
    for arm, grid in tuning["grids"].items():
        tried = "; ".join(f"{key} in {', '.join(map(str, values))}" for key, values in grid.items())
        rows.append(("tuning", f"{arm}: {tried or 'not tuned'}"))
    return rows


def _contrast(contrast: Mapping[str, Any]) -> str:
    rank = "primary" if contrast["primary"] else "descriptive"
    margin = "" if contrast["margin"] is None else f", margin {contrast['margin']:g}"
    return f"{_cell(contrast)} against {contrast['against']} on {contrast['held_out']}, {rank}{margin}"


def _crossing(crossing: Mapping[str, Any], cross: Mapping[str, Sequence[str]]) -> str:
    first, *others = cross[crossing["factor"]]
    margin = "" if crossing["margin"] is None else f", margin {crossing['margin']:g}"
    return (
        f"{crossing['factor']}: {', '.join(others)} against {first} in every arm, and between arms, on "
        f"{crossing['held_out']}, descriptive{margin}"
    )


def _parity(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    if isinstance(plan["impl"], str):
        return []
    limits = ", ".join(f"{size:g} in {precision}" for precision, size in plan["parity"]["tolerance"].items())
    return [("parity", f"every implementation within {limits} of fp64, or nothing is trained")]


def _cell(one: Mapping[str, Any]) -> str:
    return " ".join([one["arm"], *(f"{factor}={level}" for factor, level in one["at"].items())])


def _numbers(value: Any) -> str:
    """One number, a list of numbers, or either by cell."""
    if isinstance(value, dict):
        return "; ".join(f"{cell}: {_numbers(one)}" for cell, one in cast(dict[str, Any], value).items())
    return ", ".join(f"{one:,}" for one in cast(list[int], value)) if isinstance(value, list) else f"{value:,}"
