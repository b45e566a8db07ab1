"""The command `depthroute`: one file a command. Nothing here imports torch before a command runs."""

import sys

import typer

from depthroute.cli import data, demo, presets, study, train
from depthroute.errors import DepthrouteError

app = typer.Typer(
    name="depthroute",
    help="Attention residuals: compare how layers read from earlier depth.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo.demo)
app.command()(train.train)
app.add_typer(study.app, name="study")
app.add_typer(data.app, name="data")
app.command()(presets.presets)


def main() -> None:
    """Run the command line. A user's error is one line on stderr and exit code 2; a traceback is a bug of ours."""
    try:
        app()
    except DepthrouteError as error:
        fail(str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        fail(f"{where}{error.strerror or error}")


def fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
