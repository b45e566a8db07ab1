"""Changes of a trained model's depth reads, without retraining: what each read is for.

A read is z_i = <q, RMSNorm(k_i)> + prior_i, a = softmax(z), mix = sum_i a_i v_i. An intervention changes the weights a
at chosen sites, and nothing else:

    tie a to b         q_a := q_b                                     the route a reads what b reads
    swap a, b          q_a, q_b := q_b, q_a
    uniform a          q_a := 0                                       the mean of the sources, weighted by a prior
    mean a             a := its mean over tokens                      the same weights at every token
    drop i             prior_i := -inf                                source i is never read
    top k              all but the k largest z of a token := -inf     the others share their weight in proportion
    rank k             q := q P                                       P projects on the k leading right singular vectors
                                                                      of all queries of the model, stacked: <q P, k> is
                                                                      <q, P k>, so keys have rank k
    knock out          a := 0                                         a sublayer without biases then writes nothing

The trained weights are never written to. Nothing changes, to the bit, where an intervention asks for what is there.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from depthroute.model.transformer import Transformer
from depthroute.ops import logits
from depthroute.residuals import Labels, ReadBytes, ReadFlops, Reading, Residual


class Intervention(ABC):
    """One change."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What is changed, and of which route or source."""

    @abstractmethod
    def applies(self, labels: Labels) -> bool:
        """Whether a site with these routes and sources has what would be changed."""

    @abstractmethod
    def weights(self, reading: Reading, site: int, labels: Labels) -> Float[Tensor, "query source *token"]:
        """The weights that the changed read mixes the values with."""


def softmax(reading: Reading, queries: Tensor | None = None) -> Float[Tensor, "query source *token"]:
    """The read's own weights, or those of other queries."""
    own = reading.queries if queries is None else queries
    return torch.softmax(logits(own, reading.keys, reading.prior, eps=reading.eps), dim=1)


@final
@dataclass(frozen=True)
class Unchanged(Intervention):
    """The baseline of all others: the same arithmetic, nothing changed."""

    @property
    def name(self) -> str:
        return "unchanged"

    def applies(self, labels: Labels) -> bool:
        return True

    def weights(self, reading: Reading, site: int, labels: Labels) -> Float[Tensor, "query source *token"]:
        return softmax(reading)


@final
@dataclass(frozen=True)
class Take(Intervention):
    """Route by route, read with the query of another: tied where two take the same, swapped where they exchange."""

    words: str
    taken: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.words

    def applies(self, labels: Labels) -> bool:
        return {*self.taken, *self.taken.values()} <= set(labels.routes)

    def weights(self, reading: Reading, site: int, labels: Labels) -> Float[Tensor, "query source *token"]:
        rows = [labels.routes.index(self.taken.get(route, route)) for route in labels.routes]
        return softmax(reading, reading.queries[rows])


@final
@dataclass(frozen=True)
class Uniform(Intervention):
    route: str

    @property
    def name(self) -> str:
        return f"uniform {self.route}"

    def applies(self, labels: Labels) -> bool:
        return self.route in labels.routes

    def weights(self, reading: Reading, site: int, labels: Labels) -> Float[Tensor, "query source *token"]:
        queries = reading.queries.clone()
        queries[labels.routes.index(self.route)] = 0
        return softmax(reading, queries)


@final
@dataclass(frozen=True)
class Mean(Intervention):
    """`means` holds the token means of every site's weights, [route, source], as a trace measured them."""

    route: str
    means: Mapping[int, Tensor]

    @property
    def name(self) -> str:
        return f"mean {self.route}"

    def applies(self, labels: Labels) -> bool:
        return self.route in labels.routes

    def weights(self, reading: Reading, site: int, labels: Labels) -> Float[Tensor, "query source *token"]:
        weights = softmax(reading)
        row = labels.routes.index(self.route)
        mean = self.means[site][row].to(weights)
        weights[row] = mean.view(-1, *[1] * (weights.ndim - 2))
        return weights


@final
@dataclass(frozen=True)
class Drop(Intervention):
    source: str

    @property
    def name(self) -> str:
        return f"drop {self.source}"

    def applies(self, labels: Labels) -> bool:
        return self.source in labels.sources and len(labels.sources) > 1

    def weights(self, reading: Reading, site: int, labels: Labels) -> Float[Tensor, "query source *token"]:
        prior = list(reading.prior or [0.0] * len(labels.sources))
        prior[labels.sources.index(self.source)] = -math.inf
        return torch.softmax(logits(reading.queries, reading.keys, prior, eps=reading.eps), dim=1)


@final
@dataclass(frozen=True)
class TopK(Intervention):
    kept: int

    @property
    def name(self) -> str:
        return f"top {self.kept}"

    def applies(self, labels: Labels) -> bool:
        return True

    def weights(self, reading: Reading, site: int, labels: Labels) -> Float[Tensor, "query source *token"]:
        scores = logits(reading.queries, reading.keys, reading.prior, eps=reading.eps)
        if self.kept < scores.shape[1]:
            largest = scores.topk(self.kept, dim=1)
            scores = torch.full_like(scores, -math.inf).scatter(1, largest.indices, largest.values)
        return torch.softmax(scores, dim=1)


@final
@dataclass(frozen=True)
class KeyRank(Intervention):
    """`basis` holds the leading right singular vectors of all queries, [rank kept, rank]."""

    basis: Tensor

    @property
    def name(self) -> str:
        return f"key rank {len(self.basis)}"

    def applies(self, labels: Labels) -> bool:
        return True

    def weights(self, reading: Reading, site: int, labels: Labels) -> Float[Tensor, "query source *token"]:
        queries = reading.queries.double()
        basis = self.basis.to(queries)
        return softmax(reading, (queries @ basis.T @ basis).to(reading.queries.dtype))


@final
@dataclass(frozen=True)
class KnockOut(Intervention):
    """The mixture of one route, or of all, is zero."""

    route: str | None

    @property
    def name(self) -> str:
        return "knock out" if self.route is None else f"knock out {self.route}"

    def applies(self, labels: Labels) -> bool:
        return self.route is None or self.route in labels.routes

    def weights(self, reading: Reading, site: int, labels: Labels) -> Float[Tensor, "query source *token"]:
        weights = softmax(reading)
        if self.route is None:
            return torch.zeros_like(weights)
        weights[labels.routes.index(self.route)] = 0
        return weights


@final
class Intervened(Residual[Any]):
    """A trained residual, whose reads at `sites` are changed; all reads are carried out here, in plain torch."""

    def __init__(self, inner: Residual[Any], intervention: Intervention, sites: frozenset[int]) -> None:
        super().__init__()
        self.inner, self.intervention, self.sites = inner, intervention, sites
        self.key_rank, self.opens = inner.key_rank, inner.opens

    def start(self, embedding: Float[Tensor, "*token width"]) -> Any:
        return self.inner.start(embedding)

    def read(self, state: Any, site: int) -> tuple[Float[Tensor, "*token width"], ...]:
        reading = self.inner.reading(state, site)
        if reading is None:
            return self.inner.read(state, site)
        intervention = self.intervention if site in self.sites else Unchanged()
        weights = intervention.weights(reading, site, self.labels(site))
        mixed = sum(
            weights[:, source].unsqueeze(-1) * value.to(weights.dtype) for source, value in enumerate(reading.values)
        )
        assert isinstance(mixed, Tensor)
        return reading.feed(mixed.to(reading.values[0].dtype))

    def write(
        self, state: Any, site: int, value: Float[Tensor, "*token width"], key: Float[Tensor, "*token rank"] | None
    ) -> Any:
        return self.inner.write(state, site, value, key)

    def reading(self, state: Any, site: int) -> Reading | None:
        return self.inner.reading(state, site)

    def labels(self, site: int) -> Labels:
        return self.inner.labels(site)

    def flops(self) -> ReadFlops:
        return self.inner.flops()

    def bytes(self, element: int) -> ReadBytes:
        return self.inner.bytes(element)

    def reset_parameters(self) -> None:
        self.inner.reset_parameters()


@contextmanager
def intervened(model: Transformer, intervention: Intervention, sites: frozenset[int]) -> Iterator[Transformer]:
    """The live model with an intervention at `sites`; as it was afterwards."""
    trained = model.residual
    model.residual = Intervened(trained, intervention, sites)
    try:
        yield model
    finally:
        model.residual = trained
