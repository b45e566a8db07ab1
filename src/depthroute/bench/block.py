"""`depthroute bench read`: all reads of one block, direct and in two phases, against the bytes they must move.

floor, forward              every finished source and every live sum read once, every mixture written once
floor, forward + backward   each of these sources read twice, its gradient written once

Sublayers are left out; the additions to the live sum are not.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from depthroute.bench import peers
from depthroute.bench.read import COPY, EINSUM, EPS, copy_of, saved_bytes
from depthroute.bench.timing import interleaved, median, ratio
from depthroute.residuals.attnres import AttentionResidual, Config, State
from depthroute.residuals.attnres.sources import BlockSublayers

Reads = Callable[[], list[Tensor]]
STACKS = 2**30
"""Bytes that the einsum may stack for a block's backward; several times as many are alive at once."""


@dataclass(frozen=True)
class Block:
    """`sites` sites over `sources` finished sources of `tokens` rows; widths in coordinates."""

    width: int
    sources: int
    sites: int
    tokens: int
    dtype: str


def measure(block: Block, impls: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """One row a direction, reader and schedule; the einsum of stacked sources knows no second phase.

    Where its stacks would not fit in an ordinary memory, the einsum is listed as absent.
    """
    dtype: torch.dtype = getattr(torch, block.dtype)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(block.sources + block.sites, block.tokens, block.width, generator=generator).to(dtype)
    given = [one.clone().requires_grad_() for one in drawn]
    queries = [(0.1 * torch.randn(block.width, generator=generator)).requires_grad_() for _ in range(block.sites)]
    readers: dict[tuple[str, str], Reads] = {}
    stacks = 2 * drawn[0].nbytes * sum(block.sources + (site > 0) for site in range(block.sites))
    if stacks <= STACKS:
        readers[EINSUM, "direct"] = lambda: einsums(block, queries, given)
    for impl in impls:
        for schedule in ("direct", "two_phase"):
            readers[impl, schedule] = reads_of(block, impl, schedule == "two_phase", queries, given)
    inputs = [*given[:-1], *queries]  # nothing reads the last output
    copy, live = copy_of(drawn[: block.sources]), block.sites - 1
    rows: list[dict[str, Any]] = []
    for backward in (False, True):
        timed = {" ".join(key): both(reader, inputs) if backward else alone(reader) for key, reader in readers.items()}
        seconds = interleaved({COPY: copy, **timed}, rounds)
        sources = block.sources + live
        moved = 3 * sources if backward else sources + block.sites
        floor = [moved / (2 * block.sources) * one for one in seconds[COPY]]
        for (reader, schedule), reads in readers.items():
            ours = seconds[f"{reader} {schedule}"]
            rows.append(
                {
                    **asdict(block),
                    "direction": "forward+backward" if backward else "forward",
                    "reader": reader,
                    "schedule": schedule,
                    "milliseconds": 1e3 * median(ours).value,
                    "of_copy_bandwidth": 1 / ratio(ours, floor).value,
                    "against_floor": ratio(ours, floor),
                    "faster_than_einsum": ratio(seconds[f"{EINSUM} direct"], ours) if stacks <= STACKS else None,
                    "faster_than_direct": ratio(seconds[f"{reader} direct"], ours),
                    "saved_bytes": saved_bytes(reads, inputs),
                }
            )
    if stacks > STACKS:
        why = (
            f"left out: its stacks of {block.sources} sources would take {stacks / 2**30:.1f} GiB; give fewer --tokens"
        )
        rows.append({**asdict(block), "reader": EINSUM, "absent": why})
    return rows


def reads_of(block: Block, impl: str, two_phase: bool, queries: Sequence[Tensor], given: Sequence[Tensor]) -> Reads:
    """The block is the last but one of a model that has as many finished sources when it begins."""
    layers = (block.sources + 1) * block.sites // 2
    config = Config(sources=BlockSublayers(block_sublayers=block.sites), eps=EPS)
    residual = config.build(block.width, layers, impl, two_phase)
    assert isinstance(residual, AttentionResidual)
    sites = residual.layout.blocks[(block.sources - 1) * block.sites]
    for site, query in zip(sites, queries, strict=True):
        vars(residual.at(site))["queries"] = lambda query=query: query.unsqueeze(0)

    def run() -> list[Tensor]:
        state, fed = residual.look_ahead(State(tuple(given[: block.sources]), ()), sites), []
        for site, output in zip(sites, given[block.sources :], strict=True):
            fed += residual.read(state, site)
            if site != sites[-1]:
                state = residual.write(state, site, output, None)
        return fed

    return run


def einsums(block: Block, queries: Sequence[Tensor], given: Sequence[Tensor]) -> list[Tensor]:
    finished, fed, live = list(given[: block.sources]), [], []
    for query, output in zip(queries, given[block.sources :], strict=True):
        fed.append(peers.einsum(query.to(output.dtype).unsqueeze(0), [*finished, *live], EPS)[0])
        live = [live[0] + output] if live else [output]
    return fed


def alone(reads: Reads) -> Callable[[], object]:
    def run() -> None:
        with torch.no_grad():
            reads()

    return run


def both(reads: Reads, inputs: Sequence[Tensor]) -> Callable[[], object]:
    def run() -> object:
        fed = reads()
        return torch.autograd.grad(fed, inputs, [torch.ones_like(one) for one in fed])

    return run
