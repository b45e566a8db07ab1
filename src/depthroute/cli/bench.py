"""`depthroute bench`: how fast depth reads are here, always against something timed in the same run."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from depthroute.cli.options import Json, new_file, place

app = typer.Typer(help="Time depth reads and training steps, side by side in one run.", no_args_is_help=True)

Rounds = Annotated[int, typer.Option(min=5, help="Rounds that count; every candidate runs once in each.")]
Threads = Annotated[int | None, typer.Option(min=1, max=1024, help="Of the CPU.", show_default="torch's choice")]
Out = Annotated[
    Path | None,
    typer.Option(parser=new_file, metavar="FILE", help="Write the figures there as JSON.", show_default=False),
]

Presets = Annotated[
    list[str] | None, typer.Option(help="Preset; can be given several times.", show_default="all but prenorm")
]
Width = Annotated[int, typer.Option(min=1)]
Layers = Annotated[int, typer.Option(min=2)]
Heads = Annotated[int, typer.Option(min=1)]
Hidden = Annotated[int, typer.Option(min=1)]
Vocab = Annotated[int, typer.Option(min=2)]
Blocks = Annotated[int, typer.Option(min=1, help="Of the block presets.")]
Impl = Annotated[str, typer.Option(help="Of the depth reads.")]


@app.command()
def read(
    width: Annotated[list[int] | None, typer.Option(help="Coordinates of a source.", show_default="512")] = None,
    sources: Annotated[list[int] | None, typer.Option(help="Sources read.", show_default="9")] = None,
    queries: Annotated[list[int] | None, typer.Option(help="Queries of the site.", show_default="1 and 2")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Of the sources.", show_default="float32")] = None,
    impl: Annotated[list[str] | None, typer.Option(help="Implementations.", show_default="all that run here")] = None,
    tokens: Annotated[int, typer.Option(min=1)] = 2048,
    sites: Annotated[int, typer.Option(min=2, help="Sites of the block.")] = 6,
    rounds: Rounds = 30,
    threads: Threads = None,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """One read, and all reads of a block, against the bytes they must move. Options can be given several times."""
    begin(threads)
    from depthroute import ops
    from depthroute.bench import block
    from depthroute.bench import read as bench

    impls = [ops.resolve(name) for name in impl] if impl else ops.available()
    dtypes = dtype or ["float32"]
    if wrong := [name for name in dtypes if name not in ("float32", "float64", "bfloat16", "float16")]:
        raise typer.BadParameter(f"--dtype: {wrong[0]} is none of float32, float64, bfloat16, float16")
    rows = []
    for case in bench.cases(width or [512], sources or [9], queries or [1, 2], dtypes, tokens):
        say(f"width {case.width}, {case.sources} sources, {case.queries} queries, {case.tokens} tokens, {case.dtype}")
        rows += bench.measure(case, impls, rounds)
    blocks = []
    for case in bench.cases(width or [512], sources or [9], [sites], dtypes, tokens):
        say(f"a block of {sites} sites over {case.sources - 1} finished sources, width {case.width}, {case.dtype}")
        shape = block.Block(case.width, case.sources - 1, sites, tokens, case.dtype)
        blocks += block.measure(shape, impls, rounds)
    finish({"reads": rows, "blocks": blocks}, as_json, out)


@app.command()
def step(
    preset: Presets = None,
    width: Width = 512,
    layers: Layers = 12,
    heads: Heads = 8,
    hidden: Hidden = 1408,
    vocab: Vocab = 8192,
    blocks: Blocks = 6,
    batch: Annotated[int, typer.Option(min=1)] = 1,
    length: Annotated[int, typer.Option(min=2)] = 512,
    impl: Impl = "auto",
    reads: Annotated[str, typer.Option(help="auto, direct or two_phase.")] = "auto",
    compiled: Annotated[bool, typer.Option("--compile/--eager", help="Compile the sublayers, of both arms.")] = True,
    recompute: Annotated[str, typer.Option(help="none, layer or block, in both arms.")] = "none",
    rounds: Rounds = 20,
    threads: Threads = None,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """A training step (forward, loss, backward) of presets against PreNorm's."""
    begin(threads)
    from typing import get_args

    from depthroute.bench import step as bench
    from depthroute.model.transformer import Reads, Recompute

    chosen = presets(preset)
    among("--reads", reads, get_args(Reads))
    among("--recompute", recompute, get_args(Recompute))
    shape: dict[str, Any] = {"width": width, "layers": layers, "heads": heads, "hidden": hidden, "vocab": vocab}
    rows = bench.measure(
        chosen,
        shape,
        blocks,
        batch,
        length,
        rounds,
        impl=impl,
        reads=reads,  # pyright: ignore[reportArgumentType]
        compile=compiled,
        recompute=recompute,  # pyright: ignore[reportArgumentType]
        progress=say,
    )
    finish({"steps": rows}, as_json, out)


@app.command()
def decode(
    preset: Presets = None,
    context: Annotated[
        list[int] | None, typer.Option(min=1, help="Tokens read before, rising.", show_default="128, 512 and 2048")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens timed at once.")] = 8,
    width: Width = 512,
    layers: Layers = 12,
    heads: Heads = 8,
    hidden: Hidden = 1408,
    vocab: Vocab = 8192,
    blocks: Blocks = 6,
    impl: Impl = "auto",
    rounds: Rounds = 20,
    threads: Threads = None,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """A token of generation, with a KV cache, of presets against PreNorm's."""
    begin(threads)
    from depthroute.bench import decode as bench

    shape: dict[str, Any] = {"width": width, "layers": layers, "heads": heads, "hidden": hidden, "vocab": vocab}
    contexts = context or [128, 512, 2048]
    rows = bench.measure(presets(preset), shape, blocks, contexts, tokens, rounds, impl=impl, progress=say)
    finish({"decoding": rows}, as_json, out)


@app.command()
def gpu(
    out: Annotated[Path, typer.Option(parser=place, metavar="DIR", help="Where gpu.json goes.")] = Path("benchmarks"),
) -> None:
    """Check and time all implementations on a GPU, in under five minutes. Exit code 2 if one of them is wrong."""
    from depthroute.bench import gpu as bench

    found = bench.run(out)
    typer.echo(bench.table(found))
    bench.check_right(found)


def presets(asked: list[str] | None) -> list[str]:
    from depthroute.presets import PRESETS

    for name in asked or []:
        among("--preset", name, [*PRESETS])
    return asked or [name for name in PRESETS if name != "prenorm"]


def among(option: str, value: str, choices: list[str] | tuple[str, ...]) -> None:
    from depthroute.schema import nearest

    if value not in choices:
        raise typer.BadParameter(f"{option}: '{value}' does not exist {nearest(value, choices)}")


def begin(threads: int | None) -> None:
    """The process as a training run has it: glibc's allocator steady, threads as asked."""
    from depthroute import launch

    launch.with_allocator()
    import torch

    if threads is not None:
        torch.set_num_threads(threads)


def say(line: str) -> None:
    typer.echo(line, err=True)


def finish(found: dict[str, list[dict[str, Any]]], as_json: bool, out: Path | None) -> None:
    import platform

    import torch

    from depthroute import launch, runs
    from depthroute.bench.table import text

    about = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor": platform.processor() or platform.machine(),
        "allocator": launch.allocator(),
    }
    whole = json.dumps({"about": about, **found}, indent=2)
    if out is not None:
        runs.write_atomic(out, whole.encode() + b"\n")
    typer.echo(whole if as_json else text(found))
