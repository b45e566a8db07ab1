"""`depthroute bench gpu`: whether the reads are right on this GPU, and how near they come to a copy.

Every implementation is first checked against fp64, then timed in CUDA graphs, in turns (A B A B), the median of the
turns. Three works at each width, in bf16, with eight blocks and the embedding as sources:

    read     two queries over all sources, forward and backward
    block    the queries of a block over the finished sources, then each read merged with a live source, forward
    step     forward and backward of a small role-decoupled model under autocast

`copy_share` compares with a copy measured in the same run: the least that must be read and written for the work (a
step has none), over what a copy moves in that time. What an implementation refuses, and what a peer's kernel raises, is
written down as it says it; one that is wrong at a width is not timed there.
"""

import json
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from depthroute import config, runs
from depthroute.errors import ArgumentError, RunError
from depthroute.model.parity import error as error_of
from depthroute.model.transformer import Transformer
from depthroute.ops import IMPLEMENTATIONS, SPECIFICATION, Attended, attend, merge

DEVICE = "cuda"
WIDTHS = (1024, 2048, 4096, 7168, 8192)
SOURCES, QUERIES, BLOCK_QUERIES = 9, 2, 8
COORDINATES = 2**25
"""Of one source: width times tokens."""
STEP_TOKENS = 4096
CHECKED_TOKENS = 32
TOLERANCE = 2.0**-7
"""Of the largest number of a tensor: a bf16 rounding, twice."""
TURNS, REPLAYS = 5, 10
SECONDS = 270.0
"""After so long nothing more is begun."""
RESULTS = "gpu.json"

Work = Callable[[], object]
Row = dict[str, Any]


def run(out: Path) -> Row:
    """Check, time, and write `gpu.json` into `out`. RunError without a GPU."""
    if not torch.cuda.is_available():
        raise RunError("bench gpu: there is no GPU here that torch can use; run it where `nvidia-smi` shows one")
    out.mkdir(parents=True, exist_ok=True)
    if not os.access(out, os.W_OK):
        raise RunError(f"{out}: cannot be written; choose another --out")
    start, device = time.monotonic(), torch.device(DEVICE)
    checks = [check(impl, width, device) for width in WIDTHS for impl in IMPLEMENTATIONS]
    copy = copied_bytes_per_second(device)
    rows: list[Row] = []
    for width in WIDTHS:
        wrong = {one["impl"]: one["wrong"] for one in checks if one["width"] == width and one["wrong"]}
        for name, prepare in {"read": read_work, "block": block_work, "step": step_work}.items():
            late = time.monotonic() - start > SECONDS
            impls = [impl for impl in IMPLEMENTATIONS if impl not in wrong]
            timings = not_begun(impls) if late else timed(prepare, width, device, copy, impls)
            timings += [untimed(impl) | {"wrong": words} for impl, words in wrong.items()]
            rows += [{"width": width, "work": name, **row} for row in timings]
    whole = {
        "format": 1,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "copy_bytes_per_second": copy,
        "seconds": time.monotonic() - start,
        "checks": checks,
        "rows": rows,
    }
    runs.write_atomic(out / RESULTS, json.dumps(whole, indent=2, allow_nan=False).encode() + b"\n")
    return whole


def check_right(found: Row) -> None:
    """RunError that says which implementations were wrong."""
    if words := "; ".join(one["wrong"] for one in found["checks"] if one["wrong"]):
        raise RunError(f"bench gpu: {words}; more than {TOLERANCE:.1e} is not rounding, and none of it was timed")


def table(found: Row) -> str:
    """The rows as text: a width and work a line, an implementation a column, in milliseconds and share of a copy."""
    impls = list(dict.fromkeys(row["impl"] for row in found["rows"]))
    lines = [["width", "work", *impls]]
    for width, work in dict.fromkeys((row["width"], row["work"]) for row in found["rows"]):
        rows = {row["impl"]: row for row in found["rows"] if (row["width"], row["work"]) == (width, work)}
        lines.append([f"{width}", work, *(shown(rows.get(impl)) for impl in impls)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    said = ["  ".join(cell.rjust(size) for cell, size in zip(line, widths, strict=True)) for line in lines]
    refusals = dict.fromkeys(row["refused"] for row in found["rows"] if row["refused"])
    wrong = dict.fromkeys(row["wrong"] for row in found["rows"] if row["wrong"])
    notes = [*(f"-  {words}" for words in refusals), *(f"wrong  {words}" for words in wrong)]
    copied = f"milliseconds and share of a copy, which moves {found['copy_bytes_per_second'] / 1e9:,.0f} GB/s"
    return "\n".join([f"{found['device']}, {copied}", *said, *notes])


def shown(row: Row | None) -> str:
    if row is not None and row["wrong"]:
        return "wrong"
    if row is None or row["seconds"] is None:
        return "-"
    share = "" if row["copy_share"] is None else f" {row['copy_share']:.0%}"
    return f"{1e3 * row['seconds']:.3f}{share}"


def sources(width: int, tokens: int, device: torch.device, count: int = SOURCES) -> list[Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    drawn = [torch.randn(tokens, width, generator=generator, device=device) for _ in range(count)]
    return [one.bfloat16().requires_grad_() for one in drawn]


def queries_of(count: int, width: int, device: torch.device) -> Tensor:
    generator = torch.Generator(device).manual_seed(1)
    return (torch.randn(count, width, generator=generator, device=device) / width**0.5).requires_grad_()


def check(impl: str, width: int, device: torch.device, tokens: int = CHECKED_TOKENS) -> Row:
    """The largest error of a read and its gradients against fp64, null where it is not finite, and in words if it is
    too large; the refusal of what the implementation lacks."""
    found: Row = {"impl": impl, "width": width, "error": None, "wrong": None, "refused": None}
    values, queries = sources(width, tokens, device), queries_of(QUERIES, width, device)
    try:
        ours = read_and_gradients(queries, values, impl)
    except Exception as error:  # whatever a peer's kernel raises
        return found | {"refused": said(error)}
    doubles = [one.detach().double().requires_grad_() for one in (queries, *values)]
    theirs = read_and_gradients(doubles[0], doubles[1:], SPECIFICATION)
    largest = max(error_of(mine, exact) for mine, exact in zip(ours, theirs, strict=True))
    if largest > TOLERANCE:
        found["wrong"] = f"{impl} at width {width} is {largest:.1e} away from fp64"
    return found | {"error": largest if math.isfinite(largest) else None}


def said(error: Exception) -> str:
    """One line; the kind too, where it is not our own."""
    first = next(iter(str(error).splitlines()), "it says nothing")
    return first if isinstance(error, ArgumentError) else f"{type(error).__name__}: {first}"


def read_and_gradients(queries: Tensor, values: Sequence[Tensor], impl: str) -> list[Tensor]:
    mixed = attend(queries, None, values, eps=1e-6, impl=impl).mixed
    back = torch.ones_like(mixed)
    back[:, ::2] = -0.5
    return [mixed.detach(), *torch.autograd.grad(mixed, [queries, *values], back)]


def copied_bytes_per_second(device: torch.device) -> float:
    """Read and written by a copy of a gigabyte."""
    one = torch.empty(2**28, device=device)
    other = torch.empty_like(one)
    graph = captured(lambda: other.copy_(one))
    return 2 * one.nbytes / statistics.median(seconds_of(graph) for _ in range(TURNS))


def read_work(impl: str, width: int, device: torch.device) -> tuple[Work, int | None]:
    values = sources(width, COORDINATES // width, device)
    queries = queries_of(QUERIES, width, device)
    mixed_grad = torch.ones(QUERIES, *values[0].shape, device=device, dtype=torch.bfloat16)

    def work() -> object:
        mixed = attend(queries, None, values, eps=1e-6, impl=impl).mixed
        return torch.autograd.grad(mixed, [queries, *values], mixed_grad)

    # Sources in, mixtures out; then sources and the mixtures' gradients in, the sources' gradients out.
    return work, (3 * SOURCES + 2 * QUERIES) * values[0].nbytes


def block_work(impl: str, width: int, device: torch.device) -> tuple[Work, int | None]:
    values = [one.detach() for one in sources(width, COORDINATES // width // 4, device, SOURCES + 1)]
    queries = queries_of(BLOCK_QUERIES, width, device).detach()
    *finished, live = values

    def work() -> object:
        mixed, lse = attend(queries, None, finished, eps=1e-6, impl=impl)
        found: list[Attended] = []
        for number in range(BLOCK_QUERIES):
            one = slice(number, number + 1)
            read = attend(queries[one], None, [live], eps=1e-6, impl=impl)
            found.append(merge(Attended(mixed[one], lse[one]), read, impl=impl))
        return found

    # Finished sources in, mixtures out; then for each query two mixtures in and one out, a live source in and out.
    return work, (SOURCES + BLOCK_QUERIES * 6) * live.nbytes


def step_work(impl: str, width: int, device: torch.device) -> tuple[Work, int | None]:
    shape = {"vocab": 4096, "width": width, "layers": 4, "heads": width // 128, "hidden": width}
    run_config = config.from_dict({"model": {**shape, "residual": {"preset": "rd", "blocks": 4}}, "impl": impl})
    with device:
        model = Transformer(run_config.model, impl).initialise(0)
        tokens = torch.randint(4096, (STEP_TOKENS // 1024, 1024))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def work() -> object:
        # A cast that is kept from one capture would not be in the next.
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            loss = model(tokens).float().logsumexp(-1).mean()
        return torch.autograd.grad(loss, parameters, allow_unused=True)

    return work, None


def timed(
    prepare: Callable[[str, int, torch.device], tuple[Work, int | None]],
    width: int,
    device: torch.device,
    copy: float,
    impls: Sequence[str],
) -> list[Row]:
    """One row an implementation, timed in turns."""
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    refused: dict[str, str] = {}
    moved: int | None = None
    for impl in impls:
        try:
            work, moved = prepare(impl, width, device)
            graphs[impl] = captured(work)
        except Exception as error:
            refused[impl] = said(error)
    turns = [{impl: seconds_of(graph) for impl, graph in graphs.items()} for _ in range(TURNS)]
    rows = [untimed(impl) | {"refused": refused.get(impl)} for impl in impls]
    for row in rows:
        if row["impl"] in graphs:
            seconds = statistics.median(turn[row["impl"]] for turn in turns)
            row |= {"seconds": seconds, "copy_share": None if moved is None else moved / seconds / copy}
    return rows


def untimed(impl: str) -> Row:
    return {"impl": impl, "seconds": None, "copy_share": None, "refused": None, "wrong": None}


def not_begun(impls: Sequence[str]) -> list[Row]:
    return [untimed(impl) | {"refused": f"not begun: {SECONDS:.0f} seconds had passed"} for impl in impls]


def captured(work: Work) -> torch.cuda.CUDAGraph:
    """The work as a graph, after it has run a few times to compile what it needs."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def seconds_of(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / REPLAYS
