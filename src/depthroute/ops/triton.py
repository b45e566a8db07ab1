"""The read in kernels of our own: several queries read each source once, forward and backward.

    mixed, lse = attend(...)    as `reference.attend`; `attend_normed` also applies the PreNorm that follows
    merge(first, second)        as `reference.merge`

One launch each way takes any number of queries, and in it a source's row comes from device memory once. It is loaded
once for a group of queries, at most eight and as many as have room in registers; further groups load it again before
the next token is begun, from a cache: up to the numbers of sources in docs/kernels.md, which also derives the kernels.

Nothing is kept for backward but references to the sources and the mixture, and some numbers a token. Sources are fp16,
bf16 or fp32, and computed in fp32; fp64 is computed in fp64. A CPU can only run Triton's interpreter, which is for
tests. Needs the extra `kernels`.
"""

from collections.abc import Sequence
from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor

from depthroute.errors import ArgumentError
from depthroute.ops.checks import check_attend, check_norm_eps
from depthroute.ops.reference import compute_dtype
from depthroute.ops.result import Attended

WIDEST = 8192


def attend(
    queries: Float[Tensor, "query rank"],
    keys: Sequence[Float[Tensor, "*token rank"]] | None,
    values: Sequence[Float[Tensor, "*token width"]],
    prior: Sequence[float] | Float[Tensor, " source"] | None,
    before: Attended | None,
    *,
    eps: float,
    gain: Float[Tensor, " rank"] | None,
) -> Attended:
    read = launch(queries, keys, values, prior, eps, gain, None)
    return read if before is None else merge(before, read)


def attend_normed(
    queries: Float[Tensor, "query rank"],
    keys: Sequence[Float[Tensor, "*token rank"]] | None,
    values: Sequence[Float[Tensor, "*token width"]],
    prior: Sequence[float] | Float[Tensor, " source"] | None,
    *,
    eps: float,
    gain: Float[Tensor, " rank"] | None,
    norm_eps: float,
) -> Attended:
    """`attend`, but with mixed / sqrt(mean(mixed^2) + norm_eps) as mixed: the gain-free PreNorm of the sublayer.

    Raises:
        ArgumentError: as `ops.attend`; norm_eps not finite, or negative.
    """
    check_attend(queries, keys, values, prior, None, eps, gain)
    check_norm_eps(norm_eps)
    return launch(queries, keys, values, prior, eps, gain, norm_eps)


def launch(
    queries: Tensor,
    keys: Sequence[Tensor] | None,
    values: Sequence[Tensor],
    prior: Sequence[float] | Tensor | None,
    eps: float,
    gain: Tensor | None,
    norm_eps: float | None,
) -> Attended:
    operators = operators_for(values[0])
    if values[0].shape[-1] > WIDEST:
        raise ArgumentError(f"impl 'triton' reads widths up to {WIDEST}, not {values[0].shape[-1]}; use 'reference'")
    for name, tensors in {"values": values, "keys": keys or ()}.items():
        for number, tensor in enumerate(tensors):
            if operators.row_stride(tensor) is None:
                raise ArgumentError(
                    f"{name}[{number}]: its strides {list(tensor.stride())} are not those of rows at equal distances, "
                    "which impl 'triton' reads; call .contiguous() on it first"
                )
    inside = compute_dtype(values[0])
    with torch.autocast(values[0].device.type, enabled=False):
        folded = queries.to(inside) if gain is None else queries.to(inside) * gain.to(inside)
        if prior is not None:
            prior = torch.as_tensor(prior, dtype=inside, device=values[0].device).contiguous()
        mixed, lse, *_ = operators.read(
            folded.contiguous(), list(keys or ()), list(values), prior, float(eps), norm_eps
        )
    return Attended(mixed, lse)


def merge(first: Attended, second: Attended) -> Attended:
    operators = operators_for(first.mixed)
    parts = (first.mixed, second.mixed, first.lse, second.lse)
    with torch.autocast(first.mixed.device.type, enabled=False):
        return Attended(*operators.join(*(part.contiguous() for part in parts)))


def operators_for(tensor: Tensor) -> ModuleType:
    """The operators, imported when first used. ArgumentError if they cannot run here."""
    try:
        from depthroute.ops import triton_operators as operators
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise ArgumentError("impl 'triton': Triton is not installed; pip install 'depthroute[kernels]'") from None
    if tensor.device.type != "cuda" and not operators.INTERPRETED:
        raise ArgumentError(
            f"impl 'triton' needs a GPU, and the sources are on {tensor.device}; use impl 'reference', "
            "or set TRITON_INTERPRET=1 before Python starts, to test the kernels slowly"
        )
    return operators
