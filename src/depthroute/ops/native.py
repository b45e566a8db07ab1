"""The depth read on a CPU in one pass over the sources of each token (native.cpp, compiled at first use).

Backward keeps references to the sources, one logit a query, source and token, and one scale a source and token; weights
are computed again. Sources are read where they lie, whatever their dtype: rows may be any distance apart. In half
precision the rows of one token at a time are widened to fp32, and mixtures and gradients are rounded once, as they are
written. Gradients repeat to the bit, whatever the number of threads.
"""

import ctypes
import functools
from array import array
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from depthroute.errors import ArgumentError
from depthroute.ops import reference
from depthroute.ops.building import library
from depthroute.ops.reference import compute_dtype
from depthroute.ops.result import Attended

# Of the values: what native.cpp calls its functions.
NAMES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}

# A few small tensors: nothing is gained over the specification.
merge = reference.merge


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
    dtype, (*token, width) = compute_dtype(values[0]), values[0].shape
    query, prior = scoring(queries, gain, prior, values[0])
    mixed, lse = (None, None) if before is None else (before.mixed.contiguous(), before.lse.to(dtype).contiguous())
    sources = [*(keys or ()), *values]
    whole = all(source.is_contiguous() for source in sources)
    if not whole:
        sources = [rows(source) for source in sources]
    arguments = (len(values), eps, query, prior, mixed, lse)
    if torch.compiler.is_compiling():
        out, total, _, _ = read_op(*arguments, sources)
    elif torch.is_grad_enabled():
        out, total = cast(Any, NativeRead).apply(*arguments, *sources)
    else:  # nothing is kept: where one token is read, autograd's part would be felt
        out, total, _, _ = forward(*arguments, sources)
    return Attended(out, total) if whole else Attended(out.view(-1, *token, width), total.view(-1, *token))


def check_readable(value: Tensor) -> None:
    if value.device.type != "cpu":
        raise ArgumentError(f"impl: 'native' reads on a CPU, and the values are on {value.device}; choose another")
    if value.dtype not in NAMES:
        readable = ", ".join(str(name) for name in NAMES)
        raise ArgumentError(f"impl: 'native' reads {readable}; the values are {value.dtype}; choose another")


def scoring(
    queries: Float[Tensor, "query rank"],
    gain: Float[Tensor, " rank"] | None,
    prior: Sequence[float] | Float[Tensor, " source"] | None,
    value: Float[Tensor, "*token width"],
) -> tuple[Float[Tensor, "query rank"], Float[Tensor, " source"] | None]:
    """Queries times gain, and the prior, as the kernel takes them. ArgumentError for values that it cannot read."""
    check_readable(value)
    dtype = compute_dtype(value)
    # Nothing here is autocast: no product of matrices among it.
    query = queries.to(dtype) if gain is None else queries.to(dtype) * gain.to(dtype)
    return query.contiguous(), None if prior is None else torch.as_tensor(prior, dtype=dtype).contiguous()


def rows(tensor: Float[Tensor, "*token width"]) -> Float[Tensor, "row width"]:
    """One row a token: in place where tokens lie evenly apart and coordinates side by side, else a copy."""
    flat = tensor.reshape(-1, tensor.shape[-1])
    return flat if flat.stride(1) == 1 else flat.contiguous()


def stride(tensor: Tensor) -> int:
    """From one token's row to the next. A contiguous tensor may have any stride where there is one token."""
    return tensor.shape[-1] if tensor.is_contiguous() else tensor.stride(0)


def forward(
    count: int,
    eps: float,
    queries: Tensor,
    prior: Tensor | None,
    mixed_before: Tensor | None,
    lse_before: Tensor | None,
    sources: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(mixed, lse, logits `query source *token`, scales `source *token`): the last three for backward, scales 1 / rms.

    `sources` are the keys, if they are not part of the values, and then the `count` values. `mixed` and `mixed_before`
    have their dtype, all else the queries'.
    """
    out = like_outputs(count, queries, sources)
    inputs = (queries, prior, mixed_before, lse_before)
    call("attend", eps, described(count, inputs, sources, *out), sources[-1].dtype)
    return out


def backward(
    count: int,
    eps: float,
    queries: Tensor,
    prior: Tensor | None,
    mixed_before: Tensor | None,
    lse_before: Tensor | None,
    sources: Sequence[Tensor],
    saved: Sequence[Tensor],
    mixed: Tensor,
    lse: Tensor,
) -> list[Tensor]:
    """Gradients of queries and sources, then of prior and the read before, as far as these are there."""
    rest = [prior, mixed_before, lse_before]
    out = like_gradients(queries, sources, rest)
    given = iter(out[1 + len(sources) :])
    of_rest = [None if tensor is None else next(given) for tensor in rest]
    of_sources = out[1 : 1 + len(sources)]
    of_keys = of_sources[:-count] or [None] * count
    inputs = (queries, prior, mixed_before, lse_before)
    inside = (*saved, mixed.contiguous(), lse.contiguous())
    outside = (out[0], *of_rest, *of_keys, *of_sources[-count:])
    call("gradients", eps, described(count, inputs, sources, *inside, *outside), sources[-1].dtype)
    return out


def call(name: str, eps: float, numbers: "array[int]", dtype: torch.dtype) -> None:
    kernel(name, dtype)(numbers.buffer_info()[0], eps)


def described(
    count: int, inputs: Sequence[Tensor | None], sources: Sequence[Tensor], *others: Tensor | None
) -> "array[int]":
    """native.cpp takes sizes, the threads to use, the strides of all rows and then all addresses, as one array."""
    queries, keys, values = inputs[0], sources[:-count], sources[-count:]
    assert queries is not None
    (query, rank), width = queries.shape, values[0].shape[-1]
    token = values[0].numel() // width
    # Without keys, the last coordinates of the values are scored.
    skipped = 0 if keys else (width - rank) * values[0].itemsize
    threads = max(1, min(torch.get_num_threads(), token))
    strides, places = [stride(value) for value in values], [place(value) for value in values]
    key_strides, key_places = strides, [place + skipped for place in places]
    if keys:
        key_strides, key_places = [stride(key) for key in keys], [place(key) for key in keys]
    numbers = array("q", [token, width, rank, count, query, threads, *key_strides, *strides])
    numbers.extend([*map(address, inputs), *key_places, *places, *map(address, others)])
    return numbers


@functools.cache
def kernel(name: str, dtype: torch.dtype) -> Callable[[int, float], None]:
    found = getattr(library(), f"{name}_{NAMES[dtype]}")
    found.argtypes, found.restype = (ctypes.c_void_p, ctypes.c_double), None
    return found


def place(source: Tensor) -> int:
    """The address of a source: some kinds of tensors have none, and say 0."""
    found = source.data_ptr()
    if not found and source.numel():
        raise ArgumentError(f"impl: 'native' reads memory, and a {type(source).__name__} has none; choose another")
    return found


def address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def like_outputs(count: int, queries: Tensor, sources: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (*token, width), query, new = sources[-1].shape, queries.shape[0], queries.new_empty
    mixed = sources[-1].new_empty((query, *token, width))
    return mixed, new((query, *token)), new((query, count, *token)), new((count, *token))


def like_gradients(queries: Tensor, sources: Sequence[Tensor], rest: Sequence[Tensor | None]) -> list[Tensor]:
    like = (queries, *sources, *(tensor for tensor in rest if tensor is not None))
    return [tensor.new_empty(tensor.shape) for tensor in like]


class NativeRead(torch.autograd.Function):
    """The read in eager mode: nothing but what is needed stands between autograd and the kernel."""

    @staticmethod
    def forward(
        ctx: Any,
        count: int,
        eps: float,
        queries: Tensor,
        prior: Tensor | None,
        mixed_before: Tensor | None,
        lse_before: Tensor | None,
        *sources: Tensor,
    ) -> tuple[Tensor, Tensor]:
        mixed, *saved = forward(count, eps, queries, prior, mixed_before, lse_before, sources)
        ctx.save_for_backward(queries, prior, mixed_before, lse_before, *saved, *sources)
        ctx.count, ctx.eps = count, eps
        return mixed, saved[0]

    @staticmethod
    @once_differentiable  # a second derivative is an error, not a wrong number
    def backward(ctx: Any, mixed: Tensor, lse: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        *inputs, of_sources = gradients(ctx, backward, mixed, lse)
        return (*inputs, *of_sources)


def gradients(ctx: Any, compute: Callable[..., list[Tensor]], mixed: Tensor, lse: Tensor) -> tuple[Any, ...]:
    """Of count, eps, queries, prior, the read before, and the list of sources."""
    tensors = ctx.saved_tensors
    (queries, *rest), saved, sources = tensors[:4], tensors[4:7], tensors[7:]
    out = compute(ctx.count, ctx.eps, queries, *rest, sources, saved, mixed, lse)
    given = iter(out[1 + len(sources) :])
    of_rest = [None if tensor is None else next(given) for tensor in rest]
    return None, None, out[0], *of_rest, out[1 : 1 + len(sources)]


# The same two functions as operators, for torch.compile, which cannot look inside.
read_op = torch.library.custom_op("depthroute::native_read", forward, mutates_args=())
gradients_op = torch.library.custom_op("depthroute::native_gradients", backward, mutates_args=())


@read_op.register_fake  # pyright: ignore[reportUnknownMemberType]
def _(count: int, eps: float, queries: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *_, sources = rest
    return like_outputs(count, queries, sources)


@gradients_op.register_fake  # pyright: ignore[reportUnknownMemberType]
def _(count: int, eps: float, queries: Tensor, *rest: Any) -> list[Tensor]:
    prior, mixed_before, lse_before, sources, *_ = rest
    return like_gradients(queries, sources, [prior, mixed_before, lse_before])


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.count, ctx.eps, *tensors, sources = inputs
    ctx.mark_non_differentiable(*output[2:])
    ctx.save_for_backward(*tensors, *output[1:], *sources)


def backward_of_op(ctx: Any, mixed: Tensor, lse: Tensor, *_: Tensor) -> tuple[Any, ...]:
    return gradients(ctx, gradients_op, mixed, lse)


read_op.register_autograd(backward_of_op, setup_context=keep)  # pyright: ignore[reportUnknownMemberType]
