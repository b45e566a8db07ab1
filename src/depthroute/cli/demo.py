"""`depthroute demo`: a small study from beginning to end."""

from pathlib import Path
from typing import Annotated

import typer

from depthroute.cli.options import DataRoot, place


def demo(
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", parser=place, metavar="DIR", help="Study directory.", show_default="runs/demo, or runs/demo-quick"
        ),
    ] = None,
    data: DataRoot = Path("data"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer layers and steps: a check that all parts work.")
    ] = False,
) -> None:
    """Compare four residuals on Python's own documentation, in two to three minutes on two CPU cores."""
    import os
    import shlex
    import shutil
    import sys

    from rich.console import Console

    from depthroute.cli.study import conclude
    from depthroute.study.conduct import conduct
    from depthroute.study.demo import check_learned, demo_study, demo_text
    from depthroute.study.plan import plan_runs
    from depthroute.study.table import render

    directory = directory or Path("runs/demo-quick" if quick else "runs/demo")
    text = demo_text(quick)
    study = demo_study(text)
    plan = plan_runs(study)
    shape = plan[0].config
    typer.echo(
        f"demo: {len(study.arms)} residuals x {len(study.seeds)} seeds, {shape.steps} steps each, {study.workers} runs "
        f"at a time, one thread each; about {'1 minute' if quick else '2 to 3 minutes'} on 2 cores. Ctrl-C is safe: "
        "the same command goes on.",
        err=True,
    )
    results, outcome = conduct(study, text, directory, data, Console(stderr=True))
    typer.echo(render(results))
    root = [] if data == Path("data") else ["--data", str(data)]
    conclude(
        outcome, shlex.join(["depthroute", "demo", *(["--quick"] if quick else []), "--dir", str(directory), *root])
    )
    typer.echo()
    for line in check_learned(results, plan, directory, data):
        typer.echo(line)
    # `make demo` runs an environment that the person has not activated.
    beside = shlex.quote(os.path.relpath(Path(sys.executable).with_name("depthroute")))
    command = "depthroute" if shutil.which("depthroute") else beside
    where, more = shlex.quote(str(directory)), "".join(f" {shlex.quote(word)}" for word in root)
    typer.echo(
        "\nTwo seeds of an untuned toy decide nothing. The intervals know the spread between these seeds alone;\n"
        "another learning rate, size or text may turn the order round. Read no gain into the numbers: they show that\n"
        "the parts work.\n"
        f"\nEverything lies in {directory}. What to try next:\n"
        f"  {command} study status {where}\n"
        f"  {command} presets --size tiny\n"
        f"  {command} train {where}/configs/rd/1.yaml --set tokens=1000000 --run runs/longer{more}\n"
        f"  cp {where}/study.yaml mine.yaml    # your data, size, arms and seeds; then:\n"
        f"  {command} study run mine.yaml{more}"
    )
