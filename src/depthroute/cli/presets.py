"""`depthroute presets`: the papers' systems by name."""

import json
from typing import Annotated

import typer


def presets(
    size: Annotated[str, typer.Option(help="Model size: tiny, small, rd-s, rd-m or lr-0.5b.")] = "lr-0.5b",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the papers' systems with their parameters and what each changes against its parent."""
    from rich.console import Console
    from rich.table import Table

    from depthroute.model.count import parameters
    from depthroute.presets import NOTES, PRESETS, expand_model

    rows = []
    for name, preset in PRESETS.items():
        counted = parameters(expand_model({"size": size, "residual": name}))
        rows.append(
            {
                "name": name,
                "paper": preset.paper,
                "parent": preset.parent,
                "differs": preset.differs,
                "parameters": counted.total,
                "non_embedding": counted.non_embedding,
            }
        )
    if as_json:
        typer.echo(json.dumps({"size": size, "note": NOTES[size], "presets": rows}, indent=2))
        return
    known = all(row["parameters"] is not None for row in rows)
    console = Console()
    table = Table(title=f"size {size}: {NOTES[size]}", box=None, padding=(0, 2, 0, 0), title_justify="left")
    table.add_column("preset", no_wrap=True)
    table.add_column("parameters" if known else "without embedding, head", justify="right", no_wrap=known)
    if console.width >= 72:
        table.add_column("paper", no_wrap=True)
    table.add_column("against its parent")
    for row in rows:
        count = row["parameters"] if known else row["non_embedding"]
        change = f"{row['parent']}: {row['differs']}" if row["parent"] else row["differs"]
        paper = [row["paper"]] if console.width >= 72 else []
        table.add_row(row["name"], f"{count:,}", *paper, change)
    console.print(table)
