"""What every implementation may assume of its arguments; anything else is one clear line."""

import math
from collections.abc import Sequence

from torch import Tensor

from depthroute.errors import ArgumentError
from depthroute.ops.result import Attended


def check_attend(
    queries: Tensor,
    keys: Sequence[Tensor] | None,
    values: Sequence[Tensor],
    prior: Sequence[float] | Tensor | None,
    eps: float,
    gain: Tensor | None,
) -> None:
    if len(values) == 0:
        raise ArgumentError("values: there is no source to read; give at least one")
    check_alike("values", values)
    if queries.ndim != 2 or queries.shape[0] == 0:
        raise ArgumentError(f"queries: shape {shape(queries)}; give one row a query, [query, rank]")
    rank, width = queries.shape[1], values[0].shape[-1]
    if not 1 <= rank <= width:
        raise ArgumentError(f"queries: rank {rank} must lie between 1 and the width of the values, {width}")
    if keys is not None:
        if len(keys) != len(values):
            raise ArgumentError(f"keys: {len(keys)} keys for {len(values)} values; give one a source")
        check_alike("keys", keys)
        expected = (*values[0].shape[:-1], rank)
        if tuple(keys[0].shape) != expected:
            raise ArgumentError(f"keys: shape {shape(keys[0])}; these queries and values need {shape_of(expected)}")
    if prior is not None and len(prior) != len(values):
        raise ArgumentError(f"prior: {len(prior)} numbers for {len(values)} sources; give one a source")
    if isinstance(prior, Tensor) and prior.ndim != 1:
        raise ArgumentError(f"prior: shape {shape(prior)}; give one number a source, [source]")
    if not (math.isfinite(eps) and eps >= 0):
        raise ArgumentError(f"eps: {eps} must be finite and not negative")
    if gain is not None and tuple(gain.shape) != (rank,):
        raise ArgumentError(f"gain: shape {shape(gain)}; the queries' rank asks for [{rank}]")
    others = {"queries": queries, "gain": gain, "prior": prior, "keys": keys[0] if keys is not None else None}
    for name, tensor in others.items():
        if isinstance(tensor, Tensor):
            if tensor.device != values[0].device:
                raise ArgumentError(f"{name}: on {tensor.device}, but the values are on {values[0].device}")
            check_float(name, tensor)


def check_merge(first: Attended, second: Attended) -> None:
    check_alike("mixed", (first.mixed, second.mixed))
    check_alike("lse", (first.lse, second.lse))
    if first.mixed.shape[:-1] != first.lse.shape:
        raise ArgumentError(f"lse: shape {shape(first.lse)} does not belong to mixtures of shape {shape(first.mixed)}")


def check_alike(name: str, tensors: Sequence[Tensor]) -> None:
    """All of one shape, one float dtype, one device."""
    first = tensors[0]
    check_float(f"{name}[0]", first)
    for number, tensor in enumerate(tensors):
        if tensor.shape != first.shape:
            raise ArgumentError(f"{name}[{number}]: shape {shape(tensor)}, but {name}[0] has {shape(first)}")
        if tensor.dtype != first.dtype:
            raise ArgumentError(f"{name}[{number}]: dtype {tensor.dtype}, but {name}[0] has {first.dtype}")
        if tensor.device != first.device:
            raise ArgumentError(f"{name}[{number}]: on {tensor.device}, but {name}[0] is on {first.device}")


def check_float(name: str, tensor: Tensor) -> None:
    if not tensor.dtype.is_floating_point:
        raise ArgumentError(f"{name}: dtype {tensor.dtype} cannot be read; give a floating-point tensor")


def shape(tensor: Tensor) -> str:
    return shape_of(tuple(tensor.shape))


def shape_of(sizes: Sequence[int]) -> str:
    return "[" + ", ".join(str(size) for size in sizes) + "]"
