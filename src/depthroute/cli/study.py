"""`depthroute study`: compare arms over seeds, as planned."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from depthroute.cli.options import DataRoot, place
from depthroute.cli.report import report

if TYPE_CHECKING:
    from depthroute.study.execute import Outcome
    from depthroute.study.plan import Study

app = typer.Typer(help="Compare arms over seeds, in pairs, as planned.", no_args_is_help=True)
app.command()(report)

File = Annotated[Path, typer.Argument(metavar="STUDY", help="YAML file of the study.", show_default=False)]
Place = Annotated[
    Path | None,
    typer.Option(
        "--dir", parser=place, metavar="DIR", help="Study directory.", show_default="runs/ and the file's name"
    ),
]
Flagged = Annotated[
    bool, typer.Option("--include-flagged", help="Keep runs in the tables whose manifest disagrees with the plan.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the content of results.json.")]


@app.command()
def plan(
    study: File,
    directory: Place = None,
    data: DataRoot = Path("data"),
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Train a few steps of every configuration, to tell how long all will take."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the content of prereg.json.")] = False,
) -> None:
    """Fix what will be run and how it will be judged, in prereg.json, and show it.

    Before the first run the file may be changed and planned again; afterwards `study amend` records a change.
    """
    import json

    from rich.console import Console

    from depthroute.data import build
    from depthroute.study.conduct import planned_in
    from depthroute.study.dashboard import Dashboard
    from depthroute.study.plan import plan_runs
    from depthroute.study.preview import amount, render

    where, spec, text = read(study, directory)
    with Dashboard(Console(stderr=True)) as dashboard:
        document = planned_in(spec, text, where, data, dashboard, str(study))
        if as_json:
            typer.echo(json.dumps(document, indent=2))
            return
        typer.echo(render(document))
        for line in amount(spec, where, build(plan_runs(spec)[0].config.data, data), data, measure):
            typer.echo(line)


@app.command()
def run(
    study: File,
    directory: Place = None,
    data: DataRoot = Path("data"),
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at a time, if not the study's own number.")] = None,
    as_json: AsJson = False,
    include_flagged: Flagged = False,
) -> None:
    """Tune and train every arm at every seed as planned, and compare. The same command again goes on where it stopped.

    Exit code 0: all runs are complete; 1: a run failed; 2: the study cannot be run as it is; 130 or 143: stopped by
    Ctrl-C or SIGTERM. A study without a plan is planned first. One that differs from its plan is not run.
    """
    import json
    import shlex

    from rich.console import Console

    from depthroute.study.conduct import conduct
    from depthroute.study.table import render

    where, spec, text = read(study, directory)
    results, outcome = conduct(
        spec, text, where, data, Console(stderr=True), workers, file=str(study), include_flagged=include_flagged
    )
    if as_json and results:
        typer.echo(json.dumps(results, indent=2))
    elif results and not outcome.signal:
        typer.echo(render(results))
    elif results:
        typer.echo(f"{len(results['runs'])} runs are complete, {len(results['missing'])} are not")
    if results and results["flagged"] and not include_flagged:
        typer.echo(left_out(len(results["flagged"])), err=True)
    conclude(outcome, shlex.join(["depthroute", "study", "run", str(study), "--dir", str(where), "--data", str(data)]))


@app.command()
def amend(
    study: File,
    why: Annotated[str, typer.Option(help="The reason, kept with the date and what changes.", show_default=False)],
    directory: Place = None,
    data: DataRoot = Path("data"),
) -> None:
    """Change the plan of a study, and record when, why and what. What was trained already must stay as it is."""
    from rich.console import Console

    from depthroute.study.conduct import claimed, make_amendment
    from depthroute.study.dashboard import Dashboard

    where, spec, text = read(study, directory)
    with Dashboard(Console(stderr=True)) as dashboard, claimed(where, dashboard.say):
        lines = make_amendment(spec, text, where, data, dashboard, why)
    for line in lines:
        typer.echo(line)


@app.command()
def status(
    directory: Annotated[Path, typer.Argument(help="Study directory.", show_default=False)],
    as_json: AsJson = False,
    include_flagged: Flagged = False,
) -> None:
    """Show how far a study is, and what its finished runs say, from its directory and as its plan has it."""
    import json

    from depthroute.study import prereg
    from depthroute.study.amend import design_differences
    from depthroute.study.conduct import STUDY
    from depthroute.study.lock import held
    from depthroute.study.plan import read_study
    from depthroute.study.preview import standing
    from depthroute.study.results import collect
    from depthroute.study.state import progress
    from depthroute.study.table import render
    from depthroute.study.tuning import planned, tuning_runs

    text = read_study(directory / STUDY)
    document = prereg.read(directory)
    study = prereg.planned_study(document)
    tune, main = tuning_runs(study), planned(study, directory)
    results = collect(document, main, directory, include_flagged)
    at_work = held(directory)
    found = {"tuning": progress(tune, directory), "runs": progress(main, directory), "at_work": at_work}
    differences = design_differences(document, text)
    if as_json:
        typer.echo(json.dumps({**results, "progress": found, "differences": differences}, indent=2))
        return
    typer.echo(render(results))
    typer.echo()
    if differences:
        more = f" and in {len(differences) - 1} more" if len(differences) > 1 else ""
        typer.echo(f"warning: {STUDY} differs from the plan, which is what is shown: {differences[0]}{more}")
    for plan, counts in ((tune, found["tuning"]), (main, found["runs"])):
        for line in standing(plan, counts, at_work) if plan else []:
            typer.echo(line)
    typer.echo(f"{'workers are at it now' if at_work else 'nothing is at work in this directory'}")


@app.command()
def power(
    pairs: Annotated[
        int | None, typer.Option(min=2, help="Seeds that both arms have.", show_default="the study's")
    ] = None,
    sd: Annotated[float | None, typer.Option(help="Standard deviation of paired differences, nats a token.")] = None,
    effect: Annotated[float | None, typer.Option(help="Also the seeds that this difference needs.")] = None,
    level: Annotated[float, typer.Option(help="Of the two-sided t test.")] = 0.05,
    source: Annotated[
        Path | None, typer.Option("--from", help="A study directory, whose measured deviations are taken.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell which difference so many pairs can detect, and how many pairs a wanted difference needs."""
    import json

    from depthroute.errors import ConfigError
    from depthroute.study.detect import answer, measured
    from depthroute.study.power import SMALLEST_LEVEL

    if not SMALLEST_LEVEL <= level < 0.5:
        raise ConfigError(f"--level: must lie between {SMALLEST_LEVEL:g} and 0.5, not {level:g}")
    if (sd is None) == (source is None):
        raise ConfigError("give --sd, or --from with the directory of a study that has results")
    if source is None:
        if pairs is None or sd is None:
            raise ConfigError("--pairs: give the number of seeds that both arms have")
        answers = [answer(pairs, sd, level, effect)]
    else:
        answers = [
            {"contrast": name, **answer(pairs or count, deviation, level, effect)}
            for name, count, deviation in measured(source)
        ]
    if as_json:
        typer.echo(json.dumps(answers if source else answers[0], indent=2))
        return
    for found in answers:
        if source:
            typer.echo(f"{found['contrast']}:")
        for line in found["words"]:
            typer.echo(f"  {line}" if source else line)


def read(study: Path, directory: Path | None) -> "tuple[Path, Study, str]":
    """The study's directory, the study, and its YAML."""
    from depthroute.study.plan import read_study

    return directory or Path("runs") / study.stem, read_study(study), study.read_text(encoding="utf-8")


def left_out(flagged: int) -> str:
    """What a run that ends with flagged runs says."""
    return (
        f"warning: {flagged} finished run{'s were' if flagged > 1 else ' was'} left out, not being as the plan says: "
        "restore the planned environment, delete their directories to train them again, or count them by "
        "--include-flagged"
    )


def conclude(outcome: "Outcome", again: str) -> None:
    """Say on stderr what failed or was stopped and how to go on, and leave with the exit code that tells it."""
    for failure in outcome.failures:
        typer.echo(f"\n{failure.run.name} failed; its log {failure.log} ends:", err=True)
        for line in failure.lines:
            typer.echo(f"  {line}", err=True)
    if outcome.signal or outcome.failures:
        typer.echo(f"\n{'stopped; ' if outcome.signal else ''}go on with: {again}", err=True)
        raise typer.Exit(128 + outcome.signal if outcome.signal else 1)
