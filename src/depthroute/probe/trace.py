"""Depth weights on text, through the model's one observer argument: summed as they pass, never all in memory.

Sums are fp64. Exact quantiles need every weight: they are written to one temporary file a site (4 bytes a token, route
and source) and sorted a site at a time, so that memory grows with neither the text nor the depth; the disk holds
4 * tokens * sum over sites of S Q bytes until the trace is finished.
"""

import itertools
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from depthroute.errors import ArgumentError
from depthroute.model.transformer import Observer, Transformer
from depthroute.ops import logits
from depthroute.probe import measures
from depthroute.residuals import Reading

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
Rows = list[dict[str, Any]]


def site_name(site: int, layers: int) -> str:
    """`attention 3`, `mlp 3`, `readout`: what the site feeds, layers from 0."""
    return "readout" if site == 2 * layers else f"{'mlp' if site % 2 else 'attention'} {site // 2}"


@dataclass(frozen=True)
class Traced:
    """What was measured, as tables of plain rows: weights, reads, divergence, distance, depth. docs/probes.md."""

    summary: dict[str, Any]
    tables: Mapping[str, Rows]

    def table(self, name: str) -> Rows:
        if name not in self.tables:
            raise ArgumentError(f"table '{name}' does not exist (choices: {', '.join(self.tables)})")
        return self.tables[name]


@dataclass
class Sums:
    """One site's sums over tokens, by route, source or pair of routes."""

    weights: Tensor
    squares: Tensor
    entropy: Tensor
    exp_entropy: Tensor
    effective: Tensor
    source_rms: Tensor
    queries: Tensor
    """As they are, the gain folded in."""
    pairs: list[tuple[int, int]]
    divergence: np.ndarray
    """By document and pair."""


@dataclass
class Depth:
    """Sums over tokens of RMS by depth."""

    mixtures: dict[int, Tensor] = field(default_factory=dict)
    outputs: dict[int, Tensor] = field(default_factory=dict)


@final
class Tracer(Observer):
    """Traces batch after batch, then says what it saw. Closed by `finish`, or by leaving its `with`."""

    def __init__(self, model: Transformer, documents: int) -> None:
        """`documents` bounds the document numbers that will come."""
        self.model, self.layers = model, model.config.layers
        self.counts = np.zeros(documents, np.int64)
        self.sums: dict[int, Sums] = {}
        self.depth = Depth()
        self._folder = tempfile.TemporaryDirectory(prefix="depthroute-")
        self._files = {}
        self._documents = torch.empty(0, dtype=torch.int64)

    def __enter__(self) -> "Tracer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._folder.cleanup()

    @torch.no_grad()
    def add(self, tokens: Int[Tensor, "batch token"], documents: Int[Tensor, "batch token"]) -> Tensor:
        """Trace one batch; returns its logits."""
        self._documents = documents.flatten().cpu()
        self.counts += np.bincount(self._documents.numpy(), minlength=len(self.counts))
        return self.model(tokens, documents if self.model.config.document_mask else None, self)

    def read(self, site: int, state: Any, mixed: tuple[Tensor, ...]) -> None:
        means = torch.stack([measures.rms(route.double()).sum() for route in mixed]).cpu()
        self.depth.mixtures[site] = self.depth.mixtures.get(site, 0) + means
        reading = self.model.residual.reading(state, site)
        if reading is not None and len(reading.values) > 1:
            self.weigh(site, reading)

    def wrote(self, site: int, value: Tensor) -> None:
        self.depth.outputs[site] = self.depth.outputs.get(site, 0) + measures.rms(value.double()).sum().cpu()

    def weigh(self, site: int, reading: Reading) -> None:
        """Add one batch's weights to the site's sums and to its file."""
        scores = logits(reading.queries, reading.keys, reading.prior, eps=reading.eps)
        single = torch.softmax(scores, dim=1).flatten(2).permute(0, 2, 1).cpu()
        weights = single.double()
        if site not in self.sums:
            self.sums[site] = self.empty(reading)
        sums = self.sums[site]
        entropy = measures.entropy(weights)
        sums.weights += weights.sum(1)
        sums.squares += weights.square().sum(1)
        sums.entropy += entropy.sum(1)
        sums.exp_entropy += entropy.exp().sum(1)
        sums.effective += measures.effective_squares(weights).sum(1)
        sums.source_rms += torch.stack([measures.rms(value.double()).sum() for value in reading.values]).cpu()
        for column, (first, second) in enumerate(sums.pairs):
            found = measures.jensen_shannon(weights[first], weights[second])
            sums.divergence[:, column] += np.bincount(
                self._documents.numpy(), found.numpy(), minlength=len(self.counts)
            )
        if site not in self._files:
            self._files[site] = self._place(site).open("wb")
        self._files[site].write(single.permute(1, 0, 2).float().numpy().tobytes())

    def empty(self, reading: Reading) -> Sums:
        routes, sources = len(reading.queries), len(reading.values)
        pairs = list(itertools.combinations(range(routes), 2))

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64)

        return Sums(
            weights=zeros(routes, sources),
            squares=zeros(routes, sources),
            entropy=zeros(routes),
            exp_entropy=zeros(routes),
            effective=zeros(routes),
            source_rms=zeros(sources),
            queries=reading.queries.double().cpu(),
            pairs=pairs,
            divergence=np.zeros((len(self.counts), len(pairs))),
        )

    def finish(self) -> Traced:
        """All tables. ArgumentError if nothing was traced."""
        tokens = int(self.counts.sum())
        if tokens == 0:
            raise ArgumentError("trace: no token has been traced; add a batch first")
        for file in self._files.values():
            file.flush()
        tables: dict[str, Rows] = {name: [] for name in ("weights", "reads", "divergence", "distance", "depth")}
        for site, sums in self.sums.items():
            tables["weights"] += self.weight_rows(site, sums, tokens)
            tables["reads"] += self.read_rows(site, sums, tokens)
            tables["divergence"] += self.divergence_rows(site, sums, tokens)
        tables["distance"] = distance_rows(tables["weights"])
        tables["depth"] = self.depth_rows(tokens)
        self.close()
        return Traced(self.summary(tokens), tables)

    def summary(self, tokens: int) -> dict[str, Any]:
        """Counts, and the divergence of all reads together."""
        two = [sums.divergence.sum(1) / len(sums.pairs) for sums in self.sums.values() if sums.pairs]
        divergence = measures.over_documents(np.mean(two, axis=0), self.counts) if two else None
        return {
            "tokens": tokens,
            "documents": int((self.counts > 0).sum()),
            "sites": 2 * self.layers + 1,
            "sites_with_one_source": 2 * self.layers + 1 - len(self.sums),
            "exposes_weights": bool(self.sums),
            "divergence": divergence and divergence._asdict(),
            "reads_in_divergence": len(two),
        }

    def weight_rows(self, site: int, sums: Sums, tokens: int) -> Rows:
        labels = self.model.residual.labels(site)
        routes, sources = len(labels.routes), len(labels.sources)
        every = np.fromfile(self._place(site), np.float32).reshape(tokens, routes, sources)
        quantiles = np.quantile(every, QUANTILES, axis=0)
        mean, squares = sums.weights / tokens, sums.squares / tokens
        deviation = (squares - mean.square()).clamp_min(0).sqrt()
        return [
            {
                **self.where(site),
                "route": labels.routes[route],
                "source": labels.sources[source],
                "column": source,
                "distance": sources - 1 - source,
                "mean": mean[route, source].item(),
                "sd": deviation[route, source].item(),
                **{f"q{round(100 * q):02d}": float(quantiles[i, route, source]) for i, q in enumerate(QUANTILES)},
                "source_rms": sums.source_rms[source].item() / tokens,
            }
            for route, source in itertools.product(range(routes), range(sources))
        ]

    def read_rows(self, site: int, sums: Sums, tokens: int) -> Rows:
        labels = self.model.residual.labels(site)
        mean = sums.weights / tokens
        dependence = measures.token_dependence(mean, sums.squares / tokens)
        participation = measures.participation(sums.queries)
        of_mean = measures.entropy(mean)
        return [
            {
                **self.where(site),
                "route": name,
                "sources": len(labels.sources),
                "entropy": sums.entropy[route].item() / tokens,
                "effective": sums.exp_entropy[route].item() / tokens,
                "effective_squares": sums.effective[route].item() / tokens,
                "effective_of_mean": of_mean[route].exp().item(),
                "effective_squares_of_mean": measures.effective_squares(mean)[route].item(),
                "on_embedding": mean[route, 0].item(),
                "on_live": mean[route, -1].item() if labels.live else None,
                "token_dependence": dependence[route],
                "query_norm": sums.queries[route].norm().item(),
                "query_participation": participation[route],
                "rank": sums.queries.shape[1],
            }
            for route, name in enumerate(labels.routes)
        ]

    def divergence_rows(self, site: int, sums: Sums, tokens: int) -> Rows:
        routes, mean = self.model.residual.labels(site).routes, sums.weights / tokens
        rows: Rows = []
        for column, (first, second) in enumerate(sums.pairs):
            found = measures.over_documents(sums.divergence[:, column], self.counts)
            of_means = measures.jensen_shannon(mean[first], mean[second]).item()
            pair = {"first": routes[first], "second": routes[second]}
            rows.append({**self.where(site), **pair, **found._asdict(), "of_means": of_means})
        return rows

    def depth_rows(self, tokens: int) -> Rows:
        return [
            {
                **self.where(site),
                "mixture_rms": mixtures.mean().item() / tokens,
                "output_rms": self.depth.outputs[site].item() / tokens if site in self.depth.outputs else None,
            }
            for site, mixtures in self.depth.mixtures.items()
        ]

    def where(self, site: int) -> dict[str, Any]:
        return {"site": site, "site_name": site_name(site, self.layers)}

    def _place(self, site: int) -> Path:
        return Path(self._folder.name) / f"{site}.f32"


def distance_rows(weights: Rows) -> Rows:
    """Mean share by route and distance: 0 is the newest source; the mean is over the sites that have such a source."""
    found: dict[tuple[str, int], list[float]] = {}
    for row in weights:
        found.setdefault((row["route"], row["distance"]), []).append(row["mean"])
    return [
        {"route": route, "distance": distance, "share": sum(shares) / len(shares), "sites": len(shares)}
        for (route, distance), shares in sorted(found.items())
    ]


def trace(
    model: Transformer, tokens: Int[Tensor, "batch token"], documents: Int[Tensor, "batch token"] | None = None
) -> Traced:
    """Trace one batch of a live model. Without `documents` every row is its own."""
    if documents is None:
        documents = torch.arange(len(tokens)).unsqueeze(-1).expand(tokens.shape).to(tokens.device)
    with Tracer(model, int(documents.max()) + 1) as tracer:
        tracer.add(tokens, documents)
        return tracer.finish()
