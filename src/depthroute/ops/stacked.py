"""All sources in one tensor: the fewest operations a read, for passes over few tokens.

    e_i = exp(z_i - max z),   mixed = sum_i e_i v_i / sum_i e_i,   lse = max z + log sum_i e_i

At one token a read costs what starting its operations costs: there are about twenty here, however many the sources. In
exchange every read copies its sources, and over many tokens that costs more memory than the rest of a forward pass.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from depthroute.ops.reference import compute_dtype, merge
from depthroute.ops.result import Attended

__all__ = ["attend", "merge"]


def attend(
    queries: Float[Tensor, "query rank"],
    keys: Sequence[Float[Tensor, "*token rank"]] | None,
    values: Sequence[Float[Tensor, "*token width"]],
    prior: Sequence[float] | Float[Tensor, " source"] | None,
    *,
    eps: float,
    gain: Float[Tensor, " rank"] | None,
) -> Attended:
    rank, inside = queries.shape[1], compute_dtype(values[0])
    stacked = torch.stack(tuple(values), dim=-2).to(inside)
    scored = stacked[..., -rank:] if keys is None else torch.stack(tuple(keys), dim=-2).to(inside)
    query = queries.to(inside) if gain is None else queries.to(inside) * gain.to(inside)
    # Products and sums, no matrix products: autocast would take those to half precision.
    scale = torch.rsqrt(scored.square().mean(-1) + eps)
    z = (scored * query[(slice(None), *[None] * (scored.ndim - 1))]).sum(-1) * scale
    if prior is not None:
        z = z + torch.as_tensor(prior, dtype=inside, device=z.device)
    largest = z.amax(-1, keepdim=True)
    e = torch.exp(z - largest)
    total = e.sum(-1, keepdim=True)
    mixed = (e.unsqueeze(-1) * stacked).sum(-2) / total
    return Attended(mixed.to(values[0].dtype), (largest + total.log()).squeeze(-1))
