"""The command `depthroute`: one file a command. Nothing here imports torch before a command runs."""

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer
from typer.exceptions import TyperException

from depthroute.cli import (
    bench,
    cost,
    data,
    demo,
    evaluate,
    export,
    generate,
    inspect,
    intervene,
    presets,
    study,
    train,
)
from depthroute.errors import DepthrouteError, lacks_memory

app = typer.Typer(
    name="depthroute",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"depthroute {version('depthroute')}")
        raise typer.Exit
    return wanted


@app.callback()
def before_any_command(
    _: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Attention residuals: compare how layers read from earlier depth."""


app.command()(demo.demo)
app.command()(train.train)
app.add_typer(study.app, name="study")
app.add_typer(data.app, name="data")
app.command()(inspect.inspect)
app.command()(intervene.intervene)
app.command()(generate.generate)
app.command()(export.export)
app.command("eval")(evaluate.evaluate)
app.command()(presets.presets)
app.add_typer(bench.app, name="bench")
app.command()(cost.cost)


def main() -> None:
    """Run the command line. A user's error is one line on stderr and exit code 2; a traceback is a bug of ours."""
    try:
        sys.exit(app(standalone_mode=False))
    except DepthrouteError as error:
        fail(str(error))
    except TyperException as error:  # a mistake in the words of the command itself
        context = getattr(error, "ctx", None)
        more = f"; see {context.command_path} --help" if context else ""
        words = " ".join(error.format_message().split()).rstrip(".")
        fail(words + more) if words else sys.exit(2)  # without words its help has been printed
    except typer.Abort:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # whoever read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        fail(f"{where}{error.strerror or error}")
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        fail("this machine has not enough memory for that; lower batch, length, context or the model's size")


def fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
