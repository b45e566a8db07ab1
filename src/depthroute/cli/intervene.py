"""`depthroute intervene`: change the depth reads of a trained model, and see what that costs."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from depthroute.cli.options import DataRoot, HeldOut, Json, Texts


def intervene(
    run: Annotated[Path, typer.Argument(help="Run directory.", show_default=False)],
    what: Annotated[
        list[str] | None,
        typer.Option(
            help="Only these: tie, swap, uniform, mean, drop, knock-out, top, rank; may be repeated.",
            show_default="all",
        ),
    ] = None,
    text: Texts = None,
    held_out: HeldOut = None,
    tokens: Annotated[int, typer.Option(min=1, help="At most so many, spread evenly.")] = 32_768,
    in_all: Annotated[bool, typer.Option("--in-all", help="Change all sites together only, not each alone.")] = False,
    data: DataRoot = Path("data"),
    as_json: Json = False,
) -> None:
    """Tie, swap, freeze, drop or knock out reads of a trained model, and report the change in NLL. Nothing is written.

    Changes are paired: the same tokens with and without. Intervals are over documents, at 95 %.
    """
    from depthroute.probe.intervene import KINDS
    from depthroute.probe.intervene import intervene as measure
    from depthroute.probe.subject import held_out as opened
    from depthroute.probe.subject import load
    from depthroute.train.progress import TrainingProgress

    with TrainingProgress(shown=True) as progress:
        subject = load(run)
        with opened(subject, data, held_out, text or [], tokens) as chosen:
            device = subject.model.embed_tokens.weight.device
            found = measure(
                subject.model,
                lambda: chosen.batches(device),
                chosen.part.documents,
                what or KINDS,
                each=not in_all,
                progress=progress.counted,
            )
    found = {"run": str(run), "text": chosen.name, **found}
    if as_json:
        typer.echo(json.dumps(found, indent=2, allow_nan=False))
        return
    for line in rendered(found):
        typer.echo(line)


def rendered(found: dict[str, Any]) -> list[str]:
    from depthroute.study.table import columns

    lines = [
        f"{found['run']}: NLL {found['nll']:.4f} nats a token on {found['tokens']:,} tokens of {found['documents']:,} "
        f"documents of {found['text']}",
        "change of NLL, nats a token, with a 95 % interval over documents; = marks the same bits",
        "",
    ]
    rows = [["intervention", "at", "change", "interval"]]
    for change in found["changes"]:
        span = "-" if change["low"] is None else f"[{change['low']:+.5f}, {change['high']:+.5f}]"
        number = "=" if change["same_bits"] else f"{change['change']:+.5f}"
        rows.append([change["intervention"], change["site_name"], number, "-" if change["same_bits"] else span])
    return lines + columns(rows)
