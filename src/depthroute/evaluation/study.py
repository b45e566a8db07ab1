"""Every finished run of a study evaluated, and its arms compared in pairs of equal seeds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from depthroute.evaluation.evaluator import Evaluator, Progress
from depthroute.evaluation.paired import Metric, compare, render
from depthroute.evaluation.trained import of_study, opened
from depthroute.study.cells import cell_name


def evaluate(
    directory: Path,
    evaluator: Evaluator,
    progress: Progress,
    say: Callable[[str], None],
    length: int | None = None,
) -> dict[str, Any]:
    """Plain data: what was found of each run, and every metric by arm and seed with its paired differences.

    The runs that a study's own tables leave out are left out here, and named. RunError if none can be evaluated.
    """
    study = of_study(directory)
    values: dict[str, dict[str, dict[int, float]]] = {}
    entries: list[dict[str, Any]] = []
    for number, run in enumerate(study.runs, start=1):
        say(f"{number} of {len(study.runs)}: {run['directory']}")
        with opened(directory / run["directory"], length) as trained:
            found = trained.conditions | evaluator.evaluate(trained, progress)
        named = {key: run[key] for key in ("arm", "levels", "seed")}
        entries.append({**named, **found})
        for metric, value in evaluator.metrics(found).items():
            values.setdefault(metric, {}).setdefault(cell_name(run["arm"], run["levels"]), {})[run["seed"]] = value
    compared = [compare(Metric(name, by_cell), study.results) for name, by_cell in values.items()]
    kept = {key: study.results[key] for key in ("question", "seeds", "level")}
    return {"study": str(directory), **kept, "runs": entries, "metrics": compared, "left_out": study.left_out}


def lines(found: dict[str, Any]) -> list[str]:
    """Both tables of every metric, then what was left out."""
    shown = [found["question"]]
    for compared in found["metrics"]:
        shown += ["", *render(compared, found)]
    if found["left_out"]:
        shown += ["", "left out:", *(f"  {words}" for words in found["left_out"])]
    return shown
