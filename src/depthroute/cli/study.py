"""`depthroute study`: compare arms over seeds."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from depthroute.study.execute import Outcome

app = typer.Typer(help="Compare arms over seeds, in pairs.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print the content of results.json.")]


@app.command()
def run(
    study: Annotated[Path, typer.Argument(help="YAML file of the study.", show_default=False)],
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Study directory.", show_default="runs/ and the study file's name")
    ] = None,
    data: Annotated[Path, typer.Option(help="Where data sets are built and found.")] = Path("data"),
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at a time, if not the study's own number.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train every arm at every seed, and compare. The same command again goes on where it stopped.

    Exit code 0: all runs are complete; 1: a run failed; 2: the study cannot be run as it is; 130 or 143: stopped by
    Ctrl-C or SIGTERM. Arms and seeds may be added to a study later; nothing that was trained is trained again.
    """
    import json
    import shlex

    from rich.console import Console

    from depthroute.study.conduct import conduct
    from depthroute.study.plan import read_study
    from depthroute.study.table import render

    place = directory or Path("runs") / study.stem
    plan = read_study(study)
    results, outcome = conduct(plan, study.read_text(encoding="utf-8"), place, data, Console(stderr=True), workers)
    typer.echo(json.dumps(results, indent=2) if as_json else render(results))
    again = shlex.join(["depthroute", "study", "run", str(study), "--dir", str(place), "--data", str(data)])
    conclude(outcome, again)


@app.command()
def status(
    directory: Annotated[Path, typer.Argument(help="Study directory.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Show how far a study is, and what its finished runs say, from its directory alone."""
    import json

    from depthroute.study.conduct import STUDY
    from depthroute.study.lock import held
    from depthroute.study.plan import plan_runs, read_study
    from depthroute.study.results import collect
    from depthroute.study.table import render

    study = read_study(directory / STUDY)
    results = collect(study, plan_runs(study), directory)
    if as_json:
        typer.echo(json.dumps(results, indent=2))
        return
    typer.echo(render(results))
    typer.echo(f"\n{'workers are at it now' if held(directory) else 'nothing is at work in this directory'}")


def conclude(outcome: "Outcome", again: str) -> None:
    """Say on stderr what failed or was stopped and how to go on, and leave with the exit code that tells it."""
    for failure in outcome.failures:
        typer.echo(f"\n{failure.run.name} failed; its log {failure.log} ends:", err=True)
        for line in failure.lines:
            typer.echo(f"  {line}", err=True)
    if outcome.signal or outcome.failures:
        typer.echo(f"\n{'stopped; ' if outcome.signal else ''}go on with: {again}", err=True)
        raise typer.Exit(128 + outcome.signal if outcome.signal else 1)
