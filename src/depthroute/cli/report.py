"""`depthroute study report`: a finished study as one page."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    directory: Annotated[Path, typer.Argument(help="Study directory.", show_default=False)],
    include_flagged: Annotated[
        bool, typer.Option("--include-flagged", help="Count runs whose manifest disagrees with the plan.")
    ] = False,
) -> None:
    """Write report.html, tables/ and figures/ from a study's results.json, and say the verdict."""
    from depthroute.report.page import read, write
    from depthroute.study.table import verdict_lines

    results, plan = read(directory, include_flagged)
    page = write(results, plan, directory)
    for line in verdict_lines(results):
        typer.echo(line)
    typer.echo(f"\n{page}: open it in a browser; tables/ and figures/ lie beside it")
