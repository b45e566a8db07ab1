"""Every intervention on a trained model, at each site alone and at all together: by how much the NLL changes.

The change is paired: the same tokens with and without it, and the difference has an interval over documents
(`measures.over_documents`). The baseline is carried out by the same arithmetic as the changed reads.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from depthroute.errors import ArgumentError, ConfigError
from depthroute.model.transformer import Transformer
from depthroute.probe.interventions import (
    Drop,
    Intervention,
    KeyRank,
    KnockOut,
    Mean,
    Take,
    TopK,
    Unchanged,
    Uniform,
    intervened,
)
from depthroute.probe.likelihood import Likelihood, likelihood
from depthroute.probe.measures import over_documents
from depthroute.probe.subject import Tokens
from depthroute.probe.trace import Tracer, site_name
from depthroute.residuals import Labels
from depthroute.schema import nearest

KINDS = ("tie", "swap", "uniform", "mean", "drop", "knock-out", "top", "rank")
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Trial:
    """One intervention and the sites that it is tried at."""

    kind: str
    intervention: Intervention
    sites: frozenset[int]


def reads(model: Transformer) -> dict[int, Labels]:
    """The sites that weigh more than one source."""
    sites = range(2 * model.config.layers + 1)
    found = {site: model.residual.labels(site) for site in sites}
    return {site: labels for site, labels in found.items() if len(labels.sources) > 1}


def trials(
    sites: dict[int, Labels],
    queries: dict[int, torch.Tensor],
    means: dict[int, torch.Tensor],
    kinds: Sequence[str],
    each: bool,
) -> list[Trial]:
    """Every intervention of these kinds: at all sites that have what it changes, and (if `each`) at each alone."""
    found: list[Trial] = []
    for kind in kinds:
        for intervention in interventions(kind, sites, queries, means):
            applies = [site for site, labels in sites.items() if intervention.applies(labels)]
            found.append(Trial(kind, intervention, frozenset(applies)))
            if each and len(applies) > 1:
                found += [Trial(kind, intervention, frozenset([site])) for site in applies]
    return found


def interventions(
    kind: str, sites: dict[int, Labels], queries: dict[int, torch.Tensor], means: dict[int, torch.Tensor]
) -> list[Intervention]:
    routes = list(dict.fromkeys(route for labels in sites.values() for route in labels.routes))
    groups = dict.fromkeys(labels.routes for labels in sites.values() if len(labels.routes) > 1)
    pairs = [(a, b) for group in groups for index, a in enumerate(group) for b in group[index + 1 :]]
    if kind == "tie":
        return [Take(f"tie {a} to {b}", {a: b}) for pair in pairs for a, b in (pair[::-1], pair)]
    if kind == "swap":
        return [Take(f"swap {a} and {b}", {a: b, b: a}) for a, b in pairs]
    if kind == "uniform":
        return [Uniform(route) for route in routes]
    if kind == "mean":
        return [Mean(route, means) for route in routes]
    if kind == "drop":
        return [Drop(source) for source in dict.fromkeys(name for labels in sites.values() for name in labels.sources)]
    if kind == "knock-out":
        several = [route for group in groups for route in group]
        return [KnockOut(None), *(KnockOut(route) for route in dict.fromkeys(several))]
    if kind == "top":
        return [TopK(kept) for kept in powers_of_two(max(len(labels.sources) for labels in sites.values()))]
    stacked = torch.cat(list(queries.values())).double()
    basis = torch.linalg.svd(stacked, full_matrices=False).Vh
    return [KeyRank(basis[:kept]) for kept in powers_of_two(len(basis))]


def powers_of_two(below: int) -> list[int]:
    return [2**power for power in range(below.bit_length()) if 2**power < below]


def intervene(
    model: Transformer,
    batches: Callable[[], Iterable[Tokens]],
    documents: int,
    kinds: Sequence[str] = KINDS,
    *,
    each: bool = True,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Try every intervention on a live model, and say what each costs, in nats a token.

    Args:
        batches: gives the text anew at every call.
        documents: bounds the document numbers of the text.
        each: change every site alone too, not all together only.

    Raises:
        ConfigError: a kind that does not exist.
        ArgumentError: a residual that exposes no weights; nothing that these kinds could change; knocking out reads of
            a model whose norms have eps 0.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"--what {kind}: no such intervention {nearest(kind, KINDS)}")
    sites = reads(model)
    if not sites:
        name = model.config.residual.model_dump()["name"]
        raise ArgumentError(f"residual '{name}' exposes no depth weights, so there is nothing to change")
    if "knock-out" in kinds and model.config.norm_eps == 0:
        raise ArgumentError("--what knock-out: the norm of a zero mixture is 0 / 0 where model.norm_eps is 0")

    def measure(intervention: Intervention, at: frozenset[int]) -> Likelihood:
        with intervened(model, intervention, at):
            return likelihood(model, batches(), documents)

    with Tracer(model, documents) as tracer:
        for batch in batches():
            tracer.add(batch.tokens, batch.documents)
        means = {site: sums.weights / int(tracer.counts.sum()) for site, sums in tracer.sums.items()}
        queries = {site: sums.queries for site, sums in tracer.sums.items()}
    tried = trials(sites, queries, means, kinds, each)
    if not tried:
        raise ArgumentError(f"every site has one route, so there is nothing to change by {', '.join(kinds)}")
    own = likelihood(model, batches(), documents)
    baseline = measure(Unchanged(), frozenset(sites))
    rows: list[dict[str, Any]] = []
    for number, trial in enumerate(tried, start=1):
        rows.append(row(trial, measure(trial.intervention, trial.sites), baseline, model.config.layers))
        if progress is not None:
            progress(f"interventions: {trial.intervention.name},", number, len(tried))
    return {
        "tokens": int(baseline.counts.sum()),
        "documents": int((baseline.counts > 0).sum()),
        "nll": own.nll,
        "baseline": baseline.nll,
        "changes": rows,
    }


def row(trial: Trial, found: Likelihood, baseline: Likelihood, layers: int) -> dict[str, Any]:
    interval = over_documents(found.sums - baseline.sums, baseline.counts)
    alone = len(trial.sites) == 1
    site = next(iter(trial.sites)) if alone else None
    return {
        "kind": trial.kind,
        "intervention": trial.intervention.name,
        "site": site,
        "site_name": f"all {len(trial.sites)}" if site is None else site_name(site, layers),
        "change": interval.mean,
        "low": interval.low,
        "high": interval.high,
        "same_bits": bool(np.array_equal(found.sums, baseline.sums)),
    }
