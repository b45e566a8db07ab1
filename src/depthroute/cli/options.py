"""Options that several commands share."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer


def place(text: str | Path) -> Path:
    """A path that was really given: an unset shell variable must not scatter files over the working directory."""
    if not str(text).strip():
        raise typer.BadParameter("is empty; name a directory")
    return Path(text)


def new_file(text: str | Path) -> Path:
    """A file that can be written, found out before anything is measured that would go there."""
    if not str(text).strip():
        raise typer.BadParameter("is empty; name a file")
    path = Path(text)
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a directory; name a file in it")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"{path.parent} is no directory; make it first")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except OSError as error:
        raise typer.BadParameter(f"{path.parent} cannot be written: {error.strerror}; choose another place") from None


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
