"""How a run stands: finished, failed, diverged, interrupted or not started, from what lies in the study's directory."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from depthroute import config, runs
from depthroute.errors import RunError
from depthroute.study import formats
from depthroute.study.cells import Planned
from depthroute.study.seal import write_file

STATES = ("finished", "diverged", "failed", "interrupted", "not started")
# What training says when its numbers are no longer finite.
DIVERGED = "stopped without updating"


def state(run: Planned, study: Path) -> str:
    """One of `STATES`. While a study is at work, `interrupted` runs are those that it trains, or will take up."""
    directory = run.directory(study)
    if runs.finished(directory):
        return "finished"
    lines = failure(run, study)
    if lines is not None:
        return "diverged" if reason(lines) else "failed"
    return "interrupted" if runs.started(directory) else "not started"


def reason(lines: Sequence[str]) -> str | None:
    """The line that tells of numbers that are not finite; None if a run failed for another reason."""
    return next((line for line in lines if DIVERGED in line), None)


def failure(run: Planned, study: Path) -> list[str] | None:
    """The last lines of the log of a run whose process ended by itself without finishing; None without such an end."""
    path = run.failure_file(study)
    try:
        return [str(line) for line in json.loads(path.read_bytes())["lines"]]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{path}: damaged; delete it, and the run is taken up again") from None


def record_failure(run: Planned, study: Path, exit_code: int, lines: Sequence[str]) -> None:
    content = {"exit_code": exit_code, "lines": list(lines)}
    write_file(run.failure_file(study), json.dumps(content).encode() + b"\n")


def forget_failure(run: Planned, study: Path) -> None:
    run.failure_file(study).unlink(missing_ok=True)


def check_same_run(run: Planned, study: Path) -> None:
    """RunError if the run's directory holds a run of another configuration."""
    path = run.directory(study) / runs.CONFIG
    if not path.exists():
        return
    before = config.load(path)
    key = config.first_difference(before, run.config)
    if key is not None:
        there, here = config.value_at(before, key), config.value_at(run.config, key)
        raise RunError(
            f"{path}: {key} is {there!r}, but the study says {here!r}; "
            f"delete {run.directory(study)} alone to train it anew, or choose another --dir"
        )


def manifest(run: Planned, study: Path) -> dict[str, Any]:
    """manifest.json of a run. RunError if it is of another run, or of another shape than training writes it."""
    directory = run.directory(study)
    described = runs.manifest(directory)
    if problem := formats.Manifest.misfit(described):
        raise RunError(f"{directory / runs.MANIFEST}: {problem}; delete {directory} and run the study again")
    if described["config_digest"] != config.digest(run.config):
        raise RunError(
            f"{directory}: was trained with another configuration than the study's; "
            "delete that directory to train it anew, or choose another --dir"
        )
    return described


def progress(plan: Sequence[Planned], study: Path) -> dict[str, Any]:
    """How many runs there are, how many in each state, and which of them have failed."""
    states = [(run, state(run, study)) for run in plan]
    return {
        "runs": len(plan),
        **{name: sum(found == name for _, found in states) for name in STATES},
        "failures": [
            {
                "run": run.name,
                "state": found,
                "log": str(run.log(study).relative_to(study)),
                "lines": failure(run, study),
            }
            for run, found in states
            if found in ("diverged", "failed")
        ],
    }
