"""What is scored: where a source's key comes from.

    value                       k = v, rank = width                                              2603.15031
    sliced: r                   the last r coordinates of the value; gradient flows through      2607.09694, S-LR
    subset: {rank: r, seed: s}  r coordinates drawn once from the seed: the slice's ablation
    projected: r                every output projection has r more rows, [value; u] = W h, and emits RMSNorm(u);
                                the embedding emits RMSNorm(W_e e); a block's key is a sum       2607.09694, P-LR

Every key is normalised again at the read.
"""

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, final

import torch
from jaxtyping import Int
from pydantic import NonNegativeInt, PositiveInt, SerializeAsAny
from torch import Tensor

from depthroute.errors import ConfigError
from depthroute.schema import Choice, Schema, among


class Keys(Choice, ABC):
    emitted: ClassVar[bool] = False
    """Whether sublayers compute keys beside their values."""

    @abstractmethod
    def rank(self, width: int) -> int:
        """Coordinates of a key in a model of this width."""

    def coordinates(self, width: int) -> Int[Tensor, " rank"] | None:
        """Which coordinates of a value are its key; None where that is the last `rank`, or keys are emitted."""
        return None


@final
class Value(Keys):
    def rank(self, width: int) -> int:
        return width


@final
class Sliced(Keys):
    sliced: PositiveInt

    def rank(self, width: int) -> int:
        return checked_rank(self.sliced, width)


@final
class RandomCoordinates(Schema):
    rank: PositiveInt
    seed: NonNegativeInt


@final
class Subset(Keys):
    subset: RandomCoordinates

    def rank(self, width: int) -> int:
        return checked_rank(self.subset.rank, width)

    def coordinates(self, width: int) -> Int[Tensor, " rank"] | None:
        generator = torch.Generator().manual_seed(self.subset.seed)
        drawn = torch.randperm(width, generator=generator, device="cpu")[: self.subset.rank]
        return drawn.sort().values


@final
class Projected(Keys):
    projected: PositiveInt
    emitted = True

    def rank(self, width: int) -> int:
        return checked_rank(self.projected, width)


def checked_rank(rank: int, width: int) -> int:
    if rank > width:
        raise ConfigError(f"keys: rank {rank} is larger than the model's width {width}; choose at most {width}")
    return rank


AnyKeys = Annotated[SerializeAsAny[Keys], among(Value, Sliced, Subset, Projected)]
