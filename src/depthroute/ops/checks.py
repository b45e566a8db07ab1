"""What every implementation may assume of its arguments; anything else is one clear line."""

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from depthroute.errors import ArgumentError
from depthroute.ops.result import Attended


def check_attend(
    queries: Tensor,
    keys: Sequence[Tensor] | None,
    values: Sequence[Tensor],
    prior: Sequence[float] | Tensor | None,
    before: Attended | None,
    eps: float,
    gain: Tensor | None,
) -> None:
    check_sequence("values", values)
    if len(values) == 0:
        raise ArgumentError("values: there is no source to read; give at least one")
    check_alike("values", values)
    if values[0].ndim == 0:
        raise ArgumentError("values[0]: has no width; give [*token, width]")
    check_tensor("queries", queries)
    if queries.ndim != 2 or queries.shape[0] == 0:
        raise ArgumentError(f"queries: shape {shape(queries)}; give one row a query, [query, rank]")
    rank, width = queries.shape[1], values[0].shape[-1]
    if not 1 <= rank <= width:
        raise ArgumentError(f"queries: rank {rank} must lie between 1 and the width of the values, {width}")
    if keys is not None:
        check_sequence("keys", keys)
        if len(keys) != len(values):
            raise ArgumentError(f"keys: {len(keys)} keys for {len(values)} values; give one a source")
        check_alike("keys", keys)
        expected = (*values[0].shape[:-1], rank)
        if tuple(keys[0].shape) != expected:
            raise ArgumentError(f"keys: shape {shape(keys[0])}; these queries and values need {shape_of(expected)}")
        if keys[0].dtype != values[0].dtype:
            raise ArgumentError(f"keys: dtype {keys[0].dtype}, but the values have {values[0].dtype}; cast one")
    check_prior(prior, len(values))
    check_eps(eps)
    if gain is not None:
        check_tensor("gain", gain)
    if gain is not None and tuple(gain.shape) != (rank,):
        raise ArgumentError(f"gain: shape {shape(gain)}; the queries' rank asks for [{rank}]")
    if before is not None:
        check_before(before, queries, values[0])
    others = {"queries": queries, "gain": gain, "prior": prior, "keys": keys[0] if keys is not None else None}
    for name, tensor in others.items():
        if isinstance(tensor, Tensor):
            if tensor.device != values[0].device:
                raise ArgumentError(f"{name}: on {tensor.device}, but the values are on {values[0].device}")
            check_float(name, tensor)
            if tensor.dtype == torch.float64 and values[0].dtype != torch.float64:
                raise ArgumentError(f"{name}: fp64, but the values have {values[0].dtype}; cast one")


def check_sequence(name: str, given: object) -> None:
    if isinstance(given, Tensor):
        raise ArgumentError(f"{name}: one tensor of shape {shape(given)}; give a sequence, such as {name}.unbind(0)")
    if not hasattr(given, "__len__"):
        raise ArgumentError(f"{name}: a {type(given).__name__}; give a list or tuple of tensors, one a source")


def check_eps(eps: float) -> None:
    if not isinstance(eps, int | float) or not (math.isfinite(eps) and eps >= 0):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(f"eps: {eps} must be finite and not negative")


def check_norm_eps(norm_eps: float) -> None:
    if not (math.isfinite(norm_eps) and norm_eps >= 0):
        raise ArgumentError(f"norm_eps: {norm_eps} must be finite and not negative")


def check_prior(prior: Sequence[float] | Tensor | None, sources: int) -> None:
    """-inf is allowed: it hides a source. The numbers of a tensor are not looked at: that would wait for the device."""
    if prior is None:
        return
    if isinstance(prior, Tensor):
        if tuple(prior.shape) != (sources,):
            raise ArgumentError(f"prior: shape {shape(prior)}; give one number a source, [{sources}]")
        return
    if len(prior) != sources:
        raise ArgumentError(f"prior: {len(prior)} numbers for {sources} sources; give one a source")
    if any(math.isnan(number) or number == math.inf for number in prior):
        raise ArgumentError(f"prior: {list(prior)}; every number must be finite, or -inf to hide its source")
    if all(number == -math.inf for number in prior):
        raise ArgumentError("prior: -inf hides every source; show at least one, or leave this read out")


def check_before(before: Attended, queries: Tensor, value: Tensor) -> None:
    check_attended("before", before)
    expected = (queries.shape[0], *value.shape)
    for name, tensor, sizes in (("mixed", before.mixed, expected), ("lse", before.lse, expected[:-1])):
        if tuple(tensor.shape) != sizes:
            raise ArgumentError(
                f"before.{name}: shape {shape(tensor)}; these queries and values need {shape_of(sizes)}"
            )
        if tensor.device != value.device:
            raise ArgumentError(f"before.{name}: on {tensor.device}, but the values are on {value.device}")
    if before.mixed.dtype != value.dtype:
        raise ArgumentError(f"before.mixed: dtype {before.mixed.dtype}, but the values have {value.dtype}; cast one")
    check_lse(before.lse)


def check_lse(lse: Tensor) -> None:
    if lse.dtype not in (torch.float32, torch.float64):
        raise ArgumentError(f"lse: dtype {lse.dtype} is too coarse to join reads; keep it in fp32, as attend does")


def check_attended(name: str, given: object) -> None:
    if not isinstance(given, Attended):
        raise ArgumentError(f"{name}: a {type(given).__name__}; give what attend returned")


def check_merge(first: Attended, second: Attended) -> None:
    check_attended("first", first)
    check_attended("second", second)
    check_alike("mixed", (first.mixed, second.mixed))
    check_alike("lse", (first.lse, second.lse))
    if first.mixed.shape[:-1] != first.lse.shape:
        raise ArgumentError(f"lse: shape {shape(first.lse)} does not belong to mixtures of shape {shape(first.mixed)}")
    if first.lse.device != first.mixed.device:
        raise ArgumentError(f"lse: on {first.lse.device}, but the mixtures are on {first.mixed.device}")
    check_lse(first.lse)


def check_alike(name: str, tensors: Sequence[Tensor]) -> None:
    """All of one shape, one float dtype, one device."""
    first = tensors[0]
    check_float(f"{name}[0]", first)
    for number, tensor in enumerate(tensors):
        check_tensor(f"{name}[{number}]", tensor)
        if tensor.shape != first.shape:
            raise ArgumentError(f"{name}[{number}]: shape {shape(tensor)}, but {name}[0] has {shape(first)}")
        if tensor.dtype != first.dtype:
            raise ArgumentError(f"{name}[{number}]: dtype {tensor.dtype}, but {name}[0] has {first.dtype}")
        if tensor.device != first.device:
            raise ArgumentError(f"{name}[{number}]: on {tensor.device}, but {name}[0] is on {first.device}")


def check_tensor(name: str, given: object) -> None:
    if not isinstance(given, Tensor):
        raise ArgumentError(f"{name}: a {type(given).__name__}; give a tensor")


def check_float(name: str, tensor: Tensor) -> None:
    check_tensor(name, tensor)
    if not tensor.dtype.is_floating_point:
        raise ArgumentError(f"{name}: dtype {tensor.dtype} cannot be read; give a floating-point tensor")


def shape(tensor: Tensor) -> str:
    return shape_of(tuple(tensor.shape))


def shape_of(sizes: Sequence[int]) -> str:
    return "[" + ", ".join(str(size) for size in sizes) + "]"


def check_covered(impl: str, uncovered: Mapping[str, bool]) -> None:
    """ArgumentError for the first case that is there, of those that the kernel behind `impl` does not cover."""
    for case, there in uncovered.items():
        if there:
            raise ArgumentError(f"impl '{impl}' does not cover {case}; use another, such as 'reference'")


def installed(impl: str, module: str, package: str) -> Any:
    """The module of a package that is no dependency of ours. ArgumentError if it cannot be imported."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ArgumentError(f"impl '{impl}': {module} cannot be imported ({error}); pip install {package}") from None


def check_source(value: Tensor, key: Tensor | None) -> None:
    for name, tensor in (("value", value), ("key", key)):
        if tensor is not None and not tensor.is_contiguous():
            raise ArgumentError(f"{name}: must be contiguous to be written to; call .contiguous() on it first")
    if key is not None and (key.shape[:-1], key.dtype, key.device) != (value.shape[:-1], value.dtype, value.device):
        both = f"{list(key.shape)} {key.dtype} on {key.device}, {list(value.shape)} {value.dtype} on {value.device}"
        raise ArgumentError(f"key: does not lie beside the value ({both})")


def check_output(output: Tensor | None, source: Tensor) -> Tensor:
    """The output, if it has the source's shape and device."""
    if output is None:
        raise ArgumentError("key: the source has one; give its key rows with every output")
    if output.shape != source.shape or output.is_cpu != source.is_cpu:
        there = f"{list(source.shape)} on {source.device}"
        raise ArgumentError(f"output: {list(output.shape)} on {output.device} does not fit the source's {there}")
    return output
