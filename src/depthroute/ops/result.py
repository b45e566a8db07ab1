"""What a read returns."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class Attended(NamedTuple):
    """The mixture of the values, and the logarithm of the softmax's normaliser (in nats)."""

    mixed: Float[Tensor, "query *token width"]
    lse: Float[Tensor, "query *token"]
