"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer


def place(text: str | Path) -> Path:
    """A path that was really given: an unset shell variable must not scatter files over the working directory."""
    if not str(text).strip():
        raise typer.BadParameter("is empty; name a directory")
    return Path(text)


DataRoot = Annotated[
    Path, typer.Option("--data", parser=place, metavar="DIR", help="Where data sets are built and found.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Texts = Annotated[
    list[str] | None,
    typer.Option("--text", metavar="FILE", help="Text, JSONL or Parquet instead; may be repeated, and a glob."),
]
HeldOut = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Which held-out set of the run to read.", show_default="validation"),
]
