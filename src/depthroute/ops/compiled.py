"""The depth read through torch.compile, for any device.

Sources are read a few at a time, 8, 4, 2 or 1, each group going on from the read of the one before. So a number of
queries has at most eight graphs forward (a group is the first or not) and four backward, however deep the model is.
Backward keeps references to the sources, the mixture and lse; weights are computed again:

    dz_i = a_i (dlse + < dmixed, v_i > - < dmixed, mixed >)
    dv_i = a_i dmixed,   dk_i = dz_i (q / rms(k_i) - z_i k_i / (rank rms(k_i)^2))
    dq   = sum_tokens sum_i dz_i k_i / rms(k_i)
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from depthroute.ops import reference
from depthroute.ops.reference import compute_dtype
from depthroute.ops.result import Attended

GROUPS = (8, 4, 2, 1)
# Of one function, at most: eight, of one to four numbers of queries, of two shapes.
GRAPHS = 64


def merge(first: Attended, second: Attended) -> Attended:
    return graph(reference.merge)(first, second)


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
    inside = compute_dtype(values[0])
    with torch.autocast(values[0].device.type, enabled=False):
        query = queries.to(inside) if gain is None else queries.to(inside) * gain.to(inside)
        if prior is not None and not isinstance(prior, Tensor):
            prior = torch.tensor(prior, dtype=inside, device=query.device)
        mixed, lse = (None, None) if before is None else (before.mixed, before.lse.to(inside))
        prior = None if prior is None else prior.to(inside)
        apply = cast(Any, CompiledRead).apply
        return Attended(*apply(len(values), eps, query, prior, mixed, lse, *(keys or ()), *values))


class CompiledRead(torch.autograd.Function):
    """`sources` are the keys, if they are not part of the values, and the `count` values."""

    @staticmethod
    def forward(
        ctx: Any,
        count: int,
        eps: float,
        query: Tensor,
        prior: Tensor | None,
        mixed_before: Tensor | None,
        lse_before: Tensor | None,
        *sources: Tensor,
    ) -> tuple[Tensor, Tensor]:
        mixed, lse, plain = detached(mixed_before), detached(lse_before), [source.detach() for source in sources]
        for group in groups(count):
            of_sources = of_group(group, detached(prior), plain, count)
            mixed, lse = graph(forward)(query.detach(), *of_sources, mixed, lse, eps)
        assert mixed is not None
        assert lse is not None
        ctx.save_for_backward(query, prior, mixed_before, lse_before, mixed, lse, *sources)
        ctx.count, ctx.eps = count, eps
        return mixed, lse

    @staticmethod
    @once_differentiable  # a second derivative is an error, not a wrong number
    def backward(ctx: Any, dmixed: Tensor, dlse: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        tensors: list[Any] = [detached(tensor) for tensor in ctx.saved_tensors]
        query, prior, mixed_before, lse_before, mixed, lse, *sources = tensors
        shift, *of_before = graph(backward_before)(dmixed, dlse, mixed, lse, mixed_before, lse_before)
        parts: list[tuple[Tensor, Tensor, list[Tensor], list[Tensor]]] = [
            graph(backward)(query, *of_group(group, prior, sources, ctx.count), lse, shift, dmixed, ctx.eps)
            for group in groups(ctx.count)
        ]
        dquery = sum((part[0] for part in parts[1:]), parts[0][0])
        dprior = None if prior is None else torch.cat([part[1] for part in parts])
        dkeys = [dkey for part in parts for dkey in part[2]]
        dvalues = [dvalue for part in parts for dvalue in part[3]]
        return None, None, dquery, dprior, *of_before, *dkeys, *dvalues


def detached(tensor: Tensor | None) -> Tensor | None:
    """What is differentiated elsewhere would only be one more case to compile."""
    return None if tensor is None else tensor.detach()


@functools.cache
def graph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled once; the compiler is not even imported before."""
    # A whole graph, or an error: beyond the limit it would compute uncompiled. The annotations do not know the limit.
    return cast(Any, torch).compile(function, fullgraph=True, recompile_limit=GRAPHS)


def groups(count: int) -> Iterator[slice]:
    start = 0
    while start < count:
        size = next(size for size in GROUPS if size <= count - start)
        yield slice(start, start + size)
        start += size


def of_group(
    group: slice, prior: Tensor | None, sources: Sequence[Tensor], count: int
) -> tuple[list[Tensor], list[Tensor], Tensor | None]:
    """Its keys (none where they are part of the values), values and priors."""
    keys, values = sources[:-count], sources[-count:]
    return list(keys[group]), list(values[group]), None if prior is None else prior[group]


def forward(
    query: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    prior: Tensor | None,
    mixed: Tensor | None,
    lse: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    inside = query.dtype
    logits: list[Tensor] = []
    for i, key in enumerate(scored(query, keys, values)):
        z, _ = score(query, key.to(inside), eps)
        logits.append(z if prior is None else z + prior[i])
    if lse is not None:
        logits.append(lse)
    z = torch.stack(logits)
    total = torch.logsumexp(z, 0)
    weights = torch.exp(z - total).unsqueeze(-1)
    out = sum((weights[i] * values[i].to(inside) for i in range(1, len(values))), weights[0] * values[0].to(inside))
    if mixed is not None:
        out = out + weights[-1] * mixed.to(inside)
    return out.to(values[0].dtype), total


def backward_before(
    dmixed: Tensor,
    dlse: Tensor,
    mixed: Tensor,
    lse: Tensor,
    mixed_before: Tensor | None,
    lse_before: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """What all logits' gradients share, dlse - < dmixed, mixed >, and the gradients of the read before."""
    inside = lse.dtype
    shift = dlse - (dmixed.to(inside) * mixed.to(inside)).sum(-1)
    if mixed_before is None or lse_before is None:
        return shift, None, None
    weight = torch.exp(lse_before - lse)
    slope = (dmixed.to(inside) * mixed_before.to(inside)).sum(-1)
    dmixed_before = weight.unsqueeze(-1) * dmixed.to(inside)
    return shift, dmixed_before.to(mixed_before.dtype), weight * (slope + shift)


def backward(
    query: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    prior: Tensor | None,
    lse: Tensor,
    shift: Tensor,
    dmixed: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor | None, list[Tensor], list[Tensor]]:
    inside, rank = query.dtype, query.shape[-1]
    dmixed = dmixed.to(inside)
    dquery = torch.zeros_like(query)
    dpriors: list[Tensor] = []
    dkeys: list[Tensor] = []
    dvalues: list[Tensor] = []
    for i, (raw, value) in enumerate(zip(scored(query, keys, values), values, strict=True)):
        key = raw.to(inside)
        product, scale = score(query, key, eps)
        weight = torch.exp((product if prior is None else product + prior[i]) - lse)
        dz = weight * ((dmixed * value.to(inside)).sum(-1) + shift)
        dpriors.append(dz.flatten().sum())
        # Through rms(k), along the key itself.
        along = (dz * product).sum(0) * scale.square() / rank
        through = dz * scale
        dkey = (through.unsqueeze(-1) * spread(query, key)).sum(0) - along.unsqueeze(-1) * key
        dquery = dquery + (through.unsqueeze(-1) * key).flatten(1, -2).sum(1)
        dvalue = (weight.unsqueeze(-1) * dmixed).sum(0)
        if keys:
            dkeys.append(dkey.to(raw.dtype))
        else:
            dvalue = torch.cat([dvalue[..., :-rank], dvalue[..., -rank:] + dkey], -1)
        dvalues.append(dvalue.to(value.dtype))
    return dquery, None if prior is None else torch.stack(dpriors), dkeys, dvalues


def scored(query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Sequence[Tensor]:
    return keys or [value[..., -query.shape[-1] :] for value in values]


def score(query: Tensor, key: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """< q, k > / rms(k), one row a query, and 1 / rms(k)."""
    scale = torch.rsqrt(key.square().mean(-1) + eps)
    return (key * spread(query, key)).sum(-1) * scale, scale


def spread(query: Tensor, key: Tensor) -> Tensor:
    """Every query against every token: products and sums of a key are then one loop, which a matrix product is not."""
    return query.view(query.shape[0], *(1 for _ in key.shape[:-1]), query.shape[1])
