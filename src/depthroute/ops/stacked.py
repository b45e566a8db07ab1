"""All sources in one tensor: the fewest operations a read, for passes over few tokens.

    a = softmax(z),   mixed = sum_i a_i v_i,   lse = max z - log max a

At one token a read costs what starting its operations costs: there are about twenty here, however many the sources. In
exchange every read copies its sources, and over many tokens that costs more memory than the rest of a forward pass.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

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
    z = products(scored, query).movedim(-1, 0) * torch.rsqrt(scored.square().mean(-1) + eps)
    if prior is not None:
        z = z + torch.as_tensor(prior, dtype=inside, device=z.device)
    weights = torch.softmax(z, dim=-1)
    # A sum of products, no matrix product: autocast would take that to half precision.
    mixed = (weights.unsqueeze(-1) * stacked).sum(-2)
    return Attended(mixed.to(values[0].dtype), z.amax(-1) - weights.amax(-1).log())


def products(keys: Float[Tensor, "*token source rank"], queries: Float[Tensor, "query rank"]) -> Tensor:
    """<q, k> of every key and query, query last, in their own precision."""
    if not torch.is_autocast_enabled(keys.device.type):
        return linear(keys, queries)
    with torch.autocast(keys.device.type, enabled=False):
        return linear(keys, queries)
