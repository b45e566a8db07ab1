"""What a read returns."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Attended(NamedTuple):
    """The mixture of the values, and the logarithm of the softmax's normaliser (in nats)."""

    mixed: Float[Tensor, "query *token width"]
    lse: Float[Tensor, "query *token"]


def without_lse(mixed: Float[Tensor, "query *token width"]) -> Attended:
    """The result of a kernel that does not tell its normaliser: NaN stands for it."""
    return Attended(mixed, torch.full(mixed.shape[:-1], torch.nan, device=mixed.device))
