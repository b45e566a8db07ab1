# torch.library leaves the types of its registrations open.
# pyright: reportUnknownMemberType=false
"""The read as custom operators of torch, each with its gradient, so that compiling and checkpointing see one node.

    depthroute::read    folded queries, sources -> mixed, lse, and per-token numbers for backward
    depthroute::join    two reads -> the read of their union

A read is one launch, of any number of queries, and its gradients one and a sum. Nothing is timed at run time to choose
a tile: the choice would decide the order of sums, and two runs would differ in their last bits. `tiles` is the whole
choice, by shapes.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from depthroute.errors import ArgumentError
from depthroute.ops import triton_kernels, triton_merge_kernels

kernels: Any = triton_kernels
merge_kernels: Any = triton_merge_kernels
TOKENS = 8
"""Of a program: enough to sum the queries' gradient over, few enough that there are programs for every core."""
QUERIES, OWN_KEY_QUERIES, ACCUMULATORS, PER_WARP = 8, 4, 16384, 1024
"""At most so many queries in a group, or in one with separate keys; coordinates of mixtures in registers; of a warp."""
ALIGNMENT = 16
ADDRESSES = 64
"""Tensors that one launch can note the addresses of, well below the limit on a kernel's arguments."""
ROW_TILE, COLUMN_TILE = 16, 128
INTERPRETED: bool = kernels.INTERPRETED


class Tiles(NamedTuple):
    """How much of a read one program holds."""

    width: int
    keys: int
    queries: int
    """Of a group; further queries are further groups, one after another at each token."""
    warps: int


def power_of_two(number: int) -> int:
    """The least that is not below."""
    return 1 << (number - 1).bit_length()


def tiles(width: int, rank: int, queries: int, own_keys: bool) -> Tiles:
    width_tile, key_tile = power_of_two(width), power_of_two(rank)
    # Separate keys take registers too: backward as many as the mixtures, if they are as wide as the values.
    most, widest = (OWN_KEY_QUERIES, max(width_tile, 2 * key_tile)) if own_keys else (QUERIES, width_tile)
    query_tile = min(power_of_two(queries), most, max(1, ACCUMULATORS // widest))
    return Tiles(width_tile, key_tile, query_tile, min(8, max(1, query_tile * width_tile // PER_WARP)))


def row_stride(tensor: Tensor) -> int | None:
    """Coordinates from one token's row to the next; None unless rows are whole and at equal distances, in order."""
    *token, width = tensor.shape
    axes = [(size, step) for size, step in zip(token, tensor.stride(), strict=False) if size > 1]
    even = all(outer == size * step for (_, outer), (size, step) in pairwise(axes))
    whole = width == 1 or tensor.stride(-1) == 1
    return (axes[-1][1] if axes else width) if even and whole else None


class Table(NamedTuple):
    """Where the rows of some tensors lie, and to how many bytes all of them are aligned."""

    rows: Tensor
    alignment: int

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> "Table":
        rows = torch.empty(len(tensors), 2, dtype=torch.int64, device=tensors[0].device)
        strides = [row_stride(tensor) for tensor in tensors]
        if None in strides:
            raise ArgumentError("a source's rows do not lie at equal distances; call .contiguous() on it first")
        for start in range(0, len(tensors), ADDRESSES):
            part = slice(start, start + ADDRESSES)
            kernels.note_addresses[(1,)](rows[part], tuple(tensors[part]), tuple(strides[part]))
        bits = [*(tensor.data_ptr() for tensor in tensors), *(n * tensors[0].itemsize for n in strides if n)]
        return cls(rows, math.gcd(ALIGNMENT, *bits))


@torch.library.custom_op("depthroute::read", mutates_args=())
def read(
    folded: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    prior: Tensor | None,
    eps: float,
    norm_eps: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(mixed, lse, scores, scales, norms), the last three for backward.

    Without keys, the last `rank` coordinates of the values are scored. `norm_eps` asks for RMSNorm(mixed) as mixed.
    """
    mixed, lse, scores, scales, norms = room_for_read(folded, keys, values, prior, eps, norm_eps)
    queries, rank = folded.shape
    width, tokens = values[0].shape[-1], lse[0].numel()
    size = tiles(width, rank, queries, len(keys) > 0)
    with torch.cuda.device_of(folded):
        table = Table.of(values)
        key_table = Table.of(keys) if keys else table
        kernels.attend_kernel[(-(-tokens // TOKENS),)](
            table.rows,
            key_table.rows,
            folded,
            prior,
            mixed,
            lse,
            scores,
            scales,
            norms,
            tokens,
            len(values),
            WIDTH=width,
            RANK=rank,
            QUERIES=queries,
            OWN_KEYS=len(keys) > 0,
            PRIOR=prior is not None,
            EPS=eps,
            NORM_EPS=norm_eps,
            DTYPE=kernels.TYPES[mixed.dtype],
            INSIDE=kernels.TYPES[lse.dtype],
            ALIGNMENT=min(table.alignment, key_table.alignment),
            TOKENS=TOKENS,
            WIDTH_TILE=size.width,
            KEY_TILE=size.keys,
            QUERY_TILE=size.queries,
            num_warps=size.warps,
        )
    return mixed, lse, scores, scales, norms


def room_for_read(
    folded: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    prior: Tensor | None,
    eps: float,
    norm_eps: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    queries, sources = len(folded), len(values)
    *token, width = values[0].shape
    return (
        values[0].new_empty(queries, *token, width),
        folded.new_empty(queries, *token),
        folded.new_empty(*token, sources, queries),
        folded.new_empty(*token, sources),
        folded.new_empty(0) if norm_eps is None else folded.new_empty(queries, *token),
    )


@torch.library.custom_op("depthroute::read_backward", mutates_args=())
def read_backward(
    folded: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    prior: Tensor | None,
    mixed: Tensor,
    lse: Tensor,
    scores: Tensor,
    scales: Tensor,
    norms: Tensor,
    mixed_grad: Tensor,
    lse_grad: Tensor | None,
    normed: bool,
) -> tuple[Tensor, list[Tensor], list[Tensor], Tensor]:
    """Gradients of the folded queries, keys, values and prior, the last empty where there is no prior."""
    queries, rank = folded.shape
    width, tokens = values[0].shape[-1], lse[0].numel()
    size = tiles(width, rank, queries, len(keys) > 0)
    value_grads = [torch.empty(value.shape, dtype=value.dtype, device=value.device) for value in values]
    key_grads = [torch.empty(key.shape, dtype=key.dtype, device=key.device) for key in keys]
    logit_grads = torch.empty_like(scores) if prior is not None else None
    folded_grad = torch.empty_like(folded)
    programs = -(-tokens // TOKENS)
    query_sums = folded.new_empty(programs, queries, rank)
    several = queries > size.queries
    value_sums = folded.new_empty(programs, len(values), width) if several else None
    key_sums = folded.new_empty(programs, len(keys), rank) if several and keys else None
    with torch.cuda.device_of(folded):
        table, grad_table = Table.of(values), Table.of(value_grads)
        key_table, key_grad_table = (Table.of(keys), Table.of(key_grads)) if keys else (table, grad_table)
        kernels.attend_backward_kernel[(programs,)](
            table.rows,
            key_table.rows,
            grad_table.rows,
            key_grad_table.rows,
            folded,
            prior,
            mixed,
            lse,
            scores,
            scales,
            norms,
            mixed_grad,
            lse_grad,
            query_sums,
            value_sums,
            key_sums,
            logit_grads,
            tokens,
            len(values),
            WIDTH=width,
            RANK=rank,
            QUERIES=queries,
            OWN_KEYS=len(keys) > 0,
            PRIOR=prior is not None,
            LSE_GRAD=lse_grad is not None,
            NORMED=normed,
            DTYPE=kernels.TYPES[mixed.dtype],
            INSIDE=kernels.TYPES[lse.dtype],
            ALIGNMENT=min(table.alignment, key_table.alignment),
            GRAD_ALIGNMENT=min(grad_table.alignment, key_grad_table.alignment),
            TOKENS=TOKENS,
            WIDTH_TILE=size.width,
            KEY_TILE=size.keys,
            QUERY_TILE=size.queries,
            num_warps=size.warps,
        )
        kernels.sum_kernel[(-(-(queries * rank) // COLUMN_TILE),)](
            query_sums, folded_grad, programs, queries * rank, ROW_TILE=ROW_TILE, COLUMN_TILE=COLUMN_TILE
        )
    prior_grad = folded.new_empty(0)
    if logit_grads is not None:
        prior_grad = logit_grads.reshape(-1, len(values), queries).sum((0, 2))
    return folded_grad, key_grads, value_grads, prior_grad


def room_for_read_backward(
    folded: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    prior: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, list[Tensor], list[Tensor], Tensor]:
    return (
        torch.empty_like(folded),
        [key.new_empty(key.shape) for key in keys],
        [value.new_empty(value.shape) for value in values],
        folded.new_empty(0 if prior is None else len(values)),
    )


def keep_read(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    folded, keys, values, prior, _, norm_eps = inputs
    ctx.set_materialize_grads(False)
    ctx.sources, ctx.keyed, ctx.normed = len(values), len(keys) > 0, norm_eps is not None
    ctx.save_for_backward(folded, prior, *output, *keys, *values)


def differentiate_read(ctx: Any, mixed_grad: Tensor | None, lse_grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    folded, prior, mixed, lse, scores, scales, norms, *sources = ctx.saved_tensors
    keys, values = sources[: -ctx.sources], sources[-ctx.sources :]
    mixed_grad = torch.zeros_like(mixed) if mixed_grad is None else mixed_grad.contiguous()
    lse_grad = None if lse_grad is None else lse_grad.contiguous()
    folded_grad, key_grads, value_grads, prior_grad = read_backward(
        folded, keys, values, prior, mixed, lse, scores, scales, norms, mixed_grad, lse_grad, ctx.normed
    )
    return folded_grad, key_grads, value_grads, None if prior is None else prior_grad, None, None


read.register_fake(room_for_read)
read_backward.register_fake(room_for_read_backward)
read.register_autograd(differentiate_read, setup_context=keep_read)


@torch.library.custom_op("depthroute::join", mutates_args=())
def join(first: Tensor, second: Tensor, first_lse: Tensor, second_lse: Tensor) -> tuple[Tensor, Tensor]:
    """(mixed, lse) of two reads of disjoint sources."""
    mixed, lse = room_for_join(first, second, first_lse, second_lse)
    width, rows = first.shape[-1], lse.numel()
    size = tiles(width, width, 1, own_keys=False)
    with torch.cuda.device_of(first):
        merge_kernels.merge_kernel[(-(-rows // TOKENS),)](
            first,
            second,
            first_lse,
            second_lse,
            mixed,
            lse,
            rows,
            WIDTH=width,
            INSIDE=kernels.TYPES[lse.dtype],
            TOKENS=TOKENS,
            WIDTH_TILE=size.width,
            num_warps=size.warps,
        )
    return mixed, lse


def room_for_join(first: Tensor, second: Tensor, first_lse: Tensor, second_lse: Tensor) -> tuple[Tensor, Tensor]:
    return first.new_empty(first.shape), first_lse.new_empty(first_lse.shape)


@torch.library.custom_op("depthroute::join_backward", mutates_args=())
def join_backward(
    first: Tensor, second: Tensor, first_lse: Tensor, second_lse: Tensor, mixed_grad: Tensor, lse_grad: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grads = room_for_join_backward(first, second, first_lse, second_lse, mixed_grad, lse_grad)
    width, rows = first.shape[-1], first_lse.numel()
    size = tiles(width, width, 1, own_keys=False)
    with torch.cuda.device_of(first):
        merge_kernels.merge_backward_kernel[(-(-rows // TOKENS),)](
            first,
            second,
            first_lse,
            second_lse,
            mixed_grad,
            lse_grad,
            *grads,
            rows,
            WIDTH=width,
            INSIDE=kernels.TYPES[first_lse.dtype],
            TOKENS=TOKENS,
            WIDTH_TILE=size.width,
            num_warps=size.warps,
        )
    return grads


def room_for_join_backward(
    first: Tensor, second: Tensor, first_lse: Tensor, second_lse: Tensor, mixed_grad: Tensor, lse_grad: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    one, two, three, four = (like.new_empty(like.shape) for like in (first, second, first_lse, second_lse))
    return one, two, three, four


def keep_join(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def differentiate_join(ctx: Any, mixed_grad: Tensor, lse_grad: Tensor) -> tuple[Tensor, ...]:
    return join_backward(*ctx.saved_tensors, mixed_grad.contiguous(), lse_grad.contiguous())


join.register_fake(room_for_join)
join_backward.register_fake(room_for_join_backward)
join.register_autograd(differentiate_join, setup_context=keep_join)
