"""The running sum of the PreNorm Transformer: the baseline that reads nothing but the total.

    x_0 = embedding,   x_{t+1} = x_t + f_t(norm(x_t))

Xiong et al., *On Layer Normalization in the Transformer Architecture*, arXiv 2002.04745.
"""

from typing import Literal, NamedTuple, final

from jaxtyping import Float
from torch import Tensor

from depthroute.residuals import Labels, ReadBytes, ReadFlops, Reading, Residual, ResidualConfig


class State(NamedTuple):
    total: Float[Tensor, "*token width"]


@final
class Additive(Residual[State]):
    key_rank = 0

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.width, self.sites = width, 2 * layers + 1
        self.opens = frozenset(range(0, 2 * layers, 2))

    def start(self, embedding: Float[Tensor, "*token width"]) -> State:
        return State(embedding)

    def read(self, state: State, site: int) -> tuple[Float[Tensor, "*token width"], ...]:
        return (state.total,)

    def write(
        self,
        state: State,
        site: int,
        value: Float[Tensor, "*token width"],
        key: Float[Tensor, "*token rank"] | None,
    ) -> State:
        return State(state.total + value.to(state.total.dtype))

    def flops(self) -> ReadFlops:
        return ReadFlops({}, 0)

    def bytes(self, element: int) -> ReadBytes:
        total = self.width * element
        return ReadBytes(0, 0, self.sites * total, (total,) * self.sites, (1,) * self.sites)

    def labels(self, site: int) -> Labels:
        return Labels(("shared",), ("running sum",), live=False)

    def reading(self, state: State, site: int) -> Reading | None:
        return None

    def reset_parameters(self) -> None:
        """There is none."""


@final
class Config(ResidualConfig):
    name: Literal["additive"] = "additive"

    def build(self, width: int, layers: int, impl: str, two_phase: bool) -> Additive:
        return Additive(width, layers)
