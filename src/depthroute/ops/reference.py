"""The specification: one depth read, in plain torch.

    z_i = < q, g * RMSNorm(k_i) > + prior_i        RMSNorm(k) = k / sqrt(mean(k^2) + eps)
    a   = softmax over the sources
    mixed = sum_i a_i v_i,   lse = log sum_i exp z_i

Attention Residuals, arXiv 2603.15031. Everything inside is fp32 (fp64 for fp64 sources), whatever autocast says; the
mixture is cast once, on the way out. Sources are never stacked: backward keeps references to fp32 and fp64 sources and
numbers a token. Sources in half precision it keeps once more, in fp32: the price of being readable.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import rms_norm

from depthroute.ops.result import Attended


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
    rank = queries.shape[1]
    inside = compute_dtype(values[0])
    with torch.autocast(values[0].device.type, enabled=False):
        scored = [value[..., -rank:] for value in values] if keys is None else keys
        query = queries.to(inside) if gain is None else queries.to(inside) * gain.to(inside)
        logits = [score(query, key.to(inside), eps) for key in scored]
        if prior is not None:
            logits = [logit + prior[i] for i, logit in enumerate(logits)]
        z = torch.stack(logits)
        first, *weights = torch.softmax(z, dim=0).unsqueeze(-1).unbind(0)
        mixed = first * values[0].to(inside)
        for weight, value in zip(weights, values[1:], strict=True):
            mixed = torch.addcmul(mixed, weight, value.to(inside))
        read = Attended(mixed.to(values[0].dtype), torch.logsumexp(z, dim=0))
        return read if before is None else merge(before, read)


def score(query: Float[Tensor, "query rank"], key: Float[Tensor, "*token rank"], eps: float) -> Tensor:
    """<q, RMSNorm(k)>: the norm is one number a token, so it is taken out of the product and no normed key is kept."""
    scale = torch.rsqrt(key.square().mean(-1) + eps)
    return (key @ query.mT).movedim(-1, 0) * scale


def logits(
    queries: Float[Tensor, "query rank"],
    keys: Sequence[Float[Tensor, "*token rank"]],
    prior: Sequence[float] | Float[Tensor, " source"] | None,
    *,
    eps: float,
) -> Float[Tensor, "query source *token"]:
    """The scores of a read alone. Each query is scored on its own, so that equal queries have equal bits."""
    inside = compute_dtype(keys[0])
    with torch.autocast(keys[0].device.type, enabled=False):
        rows = [
            torch.cat([score(query, key.to(inside), eps) for query in torch.split(queries.to(inside), 1)])
            for key in keys
        ]
        if prior is not None:
            rows = [row + prior[i] for i, row in enumerate(rows)]
        return torch.stack(rows, dim=1)


def merge(first: Attended, second: Attended) -> Attended:
    inside = compute_dtype(first.lse)
    with torch.autocast(first.mixed.device.type, enabled=False):
        share = torch.sigmoid(second.lse.to(inside) - first.lse.to(inside)).unsqueeze(-1)
        mixed = torch.lerp(first.mixed.to(inside), second.mixed.to(inside), share)
        return Attended(mixed.to(first.mixed.dtype), torch.logaddexp(first.lse, second.lse))


def emitted(rows: Float[Tensor, "*token rank"], eps: float) -> Float[Tensor, "*token rank"]:
    """The key that key rows u emit: RMSNorm(u). *Low-Rank Attention Residuals*, arXiv 2607.09694."""
    return rms_norm(rows, rows.shape[-1:], eps=eps)


def compute_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
