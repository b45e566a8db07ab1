"""Who reads: how many queries a site has, and what each mixture feeds.

At an attention site (MLP sites and the readout always have one query, but for `placebo`):

    shared        one mixture feeds q, k and v                                                  2603.15031
    qk_v          one query for q and k, another for v                                          2608.01075, RD
    q_k_v         one query for each role
    tied          both routes of qk_v are read, with one parameter                              2608.01075, control
    average       the two routes of qk_v are read, their mean feeds every role                  2608.01075, control
    frozen_v      the value route's query stays zero: the sources' mean (weighted, if beta)     2608.01075, control
    placebo       the second query moves to the same layer's MLP site, fed the mean of its two mixtures
    temperature   q_v = exp(s) q_qk, one trained scalar a read: flatter or sharper, never elsewhere

All of them are the same function at the start, bit for bit: queries and s start at zero.
"""

from abc import ABC
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from depthroute.ops import Attended, attend, prepared_read

Route = Literal["shared", "qk_v", "q_k_v", "tied", "average", "frozen_v", "placebo", "temperature"]


class Read(nn.Module, ABC):
    """One site's read of depth."""

    learned: ClassVar[tuple[str, ...]]
    """Names of the learned queries."""
    routes: ClassVar[tuple[str, ...]]
    """Names of the mixtures that one read computes: rows of `queries()`."""

    def __init__(self, rank: int, *, gain: bool, eps: float, impl: str) -> None:
        super().__init__()
        self.eps, self.impl = eps, impl
        for name in self.learned:
            self.register_parameter(name, nn.Parameter(torch.zeros(rank)))
        self.gain = nn.Parameter(torch.ones(rank)) if gain else None

    def queries(self) -> Float[Tensor, "query rank"]:
        """One row a mixture."""
        return torch.stack([getattr(self, name) for name in self.learned])

    def feed(self, mixed: Float[Tensor, "query *token width"]) -> tuple[Float[Tensor, "*token width"], ...]:
        """The tensors that the sublayer is fed: each route's mixture."""
        return mixed.unbind(0)

    def scoring(self) -> Float[Tensor, "query rank"]:
        """What scores a key: the queries times the gain, the only thing of the two that a logit knows."""
        queries = self.queries()
        return queries if self.gain is None else queries * self.gain

    def forward(
        self,
        keys: Sequence[Float[Tensor, "*token rank"]] | None,
        values: Sequence[Float[Tensor, "*token width"]],
        prior: Sequence[float] | None,
        before: Attended | None = None,
    ) -> tuple[Float[Tensor, "*token width"], ...]:
        read = attend(self.queries(), keys, values, prior, before, eps=self.eps, gain=self.gain, impl=self.impl)
        return self.feed(read.mixed)

    def prepared(
        self,
        keys: Sequence[Float[Tensor, "*token rank"]] | None,
        values: Sequence[Float[Tensor, "*token width"]],
        prior: Sequence[float] | None,
    ) -> Callable[[], Float[Tensor, "fed *token width"]]:
        """What the sublayer is fed of these very tensors, again and again, as one; see `ops.prepared_read`."""
        return prepared_read(self.queries, keys, values, prior, eps=self.eps, gain=self.gain, impl=self.impl)

    def reset_parameters(self) -> None:
        for name, parameter in self.named_parameters():
            nn.init.constant_(parameter, 1.0 if name == "gain" else 0.0)


@final
class Shared(Read):
    learned = ("query",)
    routes = ("shared",)


@final
class QkV(Read):
    learned = ("query_qk", "query_v")
    routes = ("qk", "v")


@final
class QKV(Read):
    learned = ("query_q", "query_k", "query_v")
    routes = ("q", "k", "v")


@final
class Tied(Read):
    learned = ("query_qk",)
    routes = ("qk", "v")

    def queries(self) -> Float[Tensor, "query rank"]:
        query = self.get_parameter("query_qk")
        return torch.stack([query, query])


class MeanOfTwo(Read, ABC):
    """Two mixtures, of which the sublayer is fed the mean."""

    def feed(self, mixed: Float[Tensor, "query *token width"]) -> tuple[Float[Tensor, "*token width"], ...]:
        return (mixed.mean(0),)

    def prepared(
        self,
        keys: Sequence[Float[Tensor, "*token rank"]] | None,
        values: Sequence[Float[Tensor, "*token width"]],
        prior: Sequence[float] | None,
    ) -> Callable[[], Float[Tensor, "fed *token width"]]:
        read = super().prepared(keys, values, prior)
        return lambda: read().mean(0, keepdim=True)


@final
class Average(MeanOfTwo):
    learned = ("query_qk", "query_v")
    routes = ("qk", "v")


@final
class FrozenV(Read):
    learned = ("query_qk",)
    routes = ("qk", "v")

    def queries(self) -> Float[Tensor, "query rank"]:
        query = self.get_parameter("query_qk")
        return torch.stack([query, torch.zeros_like(query)])


@final
class PlaceboMlp(MeanOfTwo):
    learned = ("query_first", "query_second")
    routes = ("first", "second")


@final
class Temperature(Read):
    learned = ("query_qk",)
    routes = ("qk", "v")

    def __init__(self, rank: int, *, gain: bool, eps: float, impl: str) -> None:
        super().__init__(rank, gain=gain, eps=eps, impl=impl)
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def queries(self) -> Float[Tensor, "query rank"]:
        query = self.get_parameter("query_qk")
        return torch.stack([query, self.log_temperature.exp() * query])


AT_ATTENTION: dict[Route, type[Read]] = {
    "shared": Shared,
    "qk_v": QkV,
    "q_k_v": QKV,
    "tied": Tied,
    "average": Average,
    "frozen_v": FrozenV,
    "placebo": Shared,
    "temperature": Temperature,
}

KINDS = frozenset({*AT_ATTENTION.values(), PlaceboMlp})


def read_class(routes: Route, site: int, layers: int) -> type[Read]:
    """The read at site 1 .. 2 * layers: even sites feed an attention, odd ones an MLP, the last one the final norm."""
    if site == 2 * layers:
        return Shared
    if site % 2 == 0:
        return AT_ATTENTION[routes]
    # Layer 0's attention has no query, so its MLP gets none in exchange.
    return PlaceboMlp if routes == "placebo" and site > 1 else Shared
