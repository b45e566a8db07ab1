"""`depthroute bench read`: one depth read against the bytes it must move.

floor, forward              every source read once, every mixture written once
floor, forward + backward   every source read twice, the gradient of each written once

both at the speed of a copy that is timed in every round beside the reads.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from depthroute import ops
from depthroute.bench import peers
from depthroute.bench.timing import interleaved, median, ratio

EPS = 1e-6
COPY, EINSUM = "copy", "einsum"


@dataclass(frozen=True)
class Case:
    """Widths in coordinates; `sources` tensors of `tokens` rows, read by `queries` queries of one site."""

    width: int
    sources: int
    queries: int
    tokens: int
    dtype: str


def cases(
    widths: Sequence[int], sources: Sequence[int], queries: Sequence[int], dtypes: Sequence[str], tokens: int
) -> list[Case]:
    return [Case(w, s, q, tokens, d) for w, s, q, d in itertools.product(widths, sources, queries, dtypes)]


def measure(case: Case, impls: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """One row a direction and a reader. Peers join where the case is theirs: one query; they must agree first."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(case.sources, case.tokens, case.width, generator=generator).to(dtype)
    sources = [source.clone().requires_grad_() for source in drawn]
    query = (0.1 * torch.randn(case.queries, case.width, generator=generator)).requires_grad_()
    expected = ops.attend(query, None, sources, eps=EPS, impl=ops.SPECIFICATION).mixed
    upstream = torch.randn(expected.shape, generator=generator).to(dtype)

    readers = {impl: of_impl(impl, query, sources) for impl in impls}
    readers[EINSUM] = lambda: peers.einsum(query.to(dtype), sources, EPS)
    absent: dict[str, str] = {}
    if case.queries == 1:
        found, absent = peers.installed()
        for name, peer in found.items():
            reader = of_peer(peer, query, sources)
            problem = disagreement(reader, expected)
            if problem is None:
                readers[name] = reader
            else:
                absent[name] = problem
    copy = copy_of(drawn)
    rows = []
    for backward in (False, True):
        timed = {
            name: with_backward(reader, [query, *sources], upstream) if backward else without(reader)
            for name, reader in readers.items()
        }
        seconds = interleaved({COPY: copy, **timed}, rounds)
        moved = 3 * case.sources if backward else case.sources + case.queries
        floor = [moved / (2 * case.sources) * one for one in seconds[COPY]]
        rows += [
            {
                **asdict(case),
                "direction": "forward+backward" if backward else "forward",
                "reader": name,
                "milliseconds": 1e3 * median(seconds[name]).value,
                "of_copy_bandwidth": 1 / ratio(seconds[name], floor).value,
                "against_floor": ratio(seconds[name], floor),
                "faster_than_einsum": ratio(seconds[EINSUM], seconds[name]),
                "saved_bytes": saved_bytes(readers[name], [query, *sources]),
            }
            for name in readers
        ]
    return rows + [{**asdict(case), "reader": name, "absent": why} for name, why in absent.items()]


def of_impl(impl: str, query: Tensor, sources: Sequence[Tensor]) -> Callable[[], Tensor]:
    return lambda: ops.attend(query, None, sources, eps=EPS, impl=impl).mixed


def of_peer(peer: peers.Peer, query: Tensor, sources: Sequence[Tensor]) -> Callable[[], Tensor]:
    return lambda: peer(query[0].to(sources[0].dtype), sources, EPS).unsqueeze(0)


def disagreement(reader: Callable[[], Tensor], expected: Tensor) -> str | None:
    """Why a peer's time would mean nothing here."""
    try:
        worst = (reader().float() - expected.float()).abs().max().item()
    except Exception as error:  # whatever another project's code raises
        return f"cannot read this case: {type(error).__name__}: {' '.join(str(error).split())[:120]}"
    tolerance = 1e-4 if expected.dtype == torch.float32 else 0.05
    return None if worst < tolerance else f"differs from the specification by {worst:.2g}"


def without(reader: Callable[[], Tensor]) -> Callable[[], object]:
    def run() -> None:
        with torch.no_grad():
            reader()

    return run


def with_backward(reader: Callable[[], Tensor], inputs: Sequence[Tensor], upstream: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(reader(), inputs, upstream)


def copy_of(sources: Tensor) -> Callable[[], object]:
    target = torch.empty_like(sources)
    return lambda: target.copy_(sources)


def saved_bytes(reader: Callable[[], object], inputs: Sequence[Tensor]) -> int:
    """Of storages kept for backward, once each, that are not inputs."""
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        kept = reader()
    given = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    del kept
    return sum(size for storage, size in saved.items() if storage not in given)
