"""`depthroute train`: one configuration, one run directory."""

from pathlib import Path
from typing import Annotated

import typer

from depthroute.cli.options import DataRoot, place


def train(
    config: Annotated[Path, typer.Argument(help="YAML file of the run.", show_default=False)],
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as model.width=96.")
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(parser=place, metavar="DIR", help="Run directory.", show_default="runs/ and the file's name"),
    ] = None,
    data: DataRoot = Path("data"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint.")] = False,
) -> None:
    """Train a model into a run directory. Stopped or killed, the same command with --resume goes on."""
    from depthroute import launch

    launch.with_allocator()
    from depthroute import runs
    from depthroute.config import load
    from depthroute.train.loop import train as train_run
    from depthroute.train.stopping import Interrupted

    directory = run or Path("runs") / config.stem
    try:
        train_run(load(config, sets or []), directory, data, resume=resume, verbose=True)
    except Interrupted as stop:
        typer.echo(str(stop), err=True)
        raise typer.Exit(stop.exit_code) from None
    typer.echo(f"run {directory}")
    for name, evaluation in runs.final_evaluation(directory).items():
        nll, bits = evaluation["nll"], evaluation["bits_per_byte"]
        typer.echo(f"{name}  {nll:.4f} nats a token  {bits:.4f} bits a byte")
