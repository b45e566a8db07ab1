"""`depthroute inspect`: what the depth reads of trained models do."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from depthroute.cli.options import DataRoot, HeldOut, Json, Texts, place

if TYPE_CHECKING:
    from depthroute.train.progress import TrainingProgress


def inspect(
    directories: Annotated[
        list[Path],
        typer.Argument(metavar="RUN|STUDY", help="One run, two to see side by side, or a study.", show_default=False),
    ],
    text: Texts = None,
    held_out: HeldOut = None,
    tokens: Annotated[int, typer.Option(min=1, help="At most so many, spread evenly.")] = 100_000,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", parser=place, metavar="DIR", help="Where to write.", show_default="inspect/ in the first"
        ),
    ] = None,
    data: DataRoot = Path("data"),
    no_parquet: Annotated[bool, typer.Option("--no-parquet", help="Write JSON and the page alone.")] = False,
    as_json: Json = False,
) -> None:
    """Measure depth weights, routes, norms and gradients on held-out text, into numbers and one page."""
    from depthroute.probe.inspect import check_parquet, check_place, write
    from depthroute.report import depth
    from depthroute.train.progress import TrainingProgress

    if not no_parquet:
        check_parquet()
    directory = out or directories[0] / "inspect"
    check_place(directory)
    groups: dict[str, list[dict[str, Any]]] = {}
    with TrainingProgress(shown=True) as progress:
        for label, run in chosen(directories):
            groups.setdefault(label, []).append(inspected(run, data, held_out, text or [], tokens, progress))
    content = write(groups, directory, not no_parquet)
    page = depth.write(content, directory, f"Depth reads of {' and '.join(map(str, directories))}")
    if as_json:
        typer.echo(json.dumps(content, indent=2))
        return
    for line in summary(content):
        typer.echo(line)
    beside = "inspect.json lies" if no_parquet else "inspect.json and Parquet files lie"
    typer.echo(f"\n{page}: open it in a browser; {beside} beside it")


def chosen(directories: list[Path]) -> Iterator[tuple[str, Path]]:
    """Every run with the label of its group: its own path, or its arm and levels in a study."""
    from depthroute import runs
    from depthroute.errors import RunError
    from depthroute.study.conduct import STUDY
    from depthroute.study.plan import read_study
    from depthroute.study.tuning import planned

    studies = [directory for directory in directories if (directory / STUDY).is_file()]
    if not studies:
        if len(directories) > 2:
            raise RunError(f"{len(directories)} runs: one or two can be seen side by side; a study shows all its arms")
        yield from ((str(directory), directory) for directory in dict.fromkeys(directories))
        return
    if len(directories) > 1:
        raise RunError(f"{studies[0]}: is a study, which stands alone; take the other directories away")
    (study,) = studies
    done = [run for run in planned(read_study(study / STUDY), study) if runs.finished(run.directory(study))]
    if not done:
        raise RunError(f"{study}: no run has ended yet; finish the study with depthroute study run")
    # A repeated run is no further seed.
    yield from ((run.cell, run.directory(study)) for run in done if not run.replicate)


def inspected(
    run: Path, data: Path, name: str | None, files: list[str], tokens: int, progress: "TrainingProgress"
) -> dict[str, Any]:
    from depthroute.probe.inspect import inspect as measure
    from depthroute.probe.subject import held_out, load

    subject = load(run)
    with held_out(subject, data, name, files, tokens) as text:
        found = measure(subject, text, progress.counted)
    if not found["summary"]["exposes_weights"]:
        progress.message(
            f"{run}: residual '{found['residual']['name']}' exposes no depth weights; the rest is measured"
        )
    return found


def summary(content: dict[str, Any]) -> Iterator[str]:
    """The table of the page, for the terminal, and what the reads with one source are."""
    from depthroute.report.depth import summary_table
    from depthroute.study.table import columns

    table = summary_table(content["groups"])
    yield from columns([table.head, *table.rows])
    for group in content["groups"]:
        counts = group["runs"][0]["summary"]
        if counts["exposes_weights"]:
            yield (
                f"{group['label']}: {counts['sites']} sites, {counts['sites_with_one_source']} with one source left "
                f"out; JS over {counts['reads_in_divergence']} reads with several routes"
            )
