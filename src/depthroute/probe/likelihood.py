"""The NLL of a text, document by document: pure cross-entropy, in nats."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from depthroute.model.transformer import Transformer
from depthroute.probe.subject import Tokens


class Likelihood(NamedTuple):
    """By document: the sum of its tokens' NLL, and how many they are."""

    sums: np.ndarray
    counts: np.ndarray

    @property
    def nll(self) -> float:
        return float(self.sums.sum() / self.counts.sum())


@torch.no_grad()
def likelihood(model: Transformer, batches: Iterable[Tokens], documents: int) -> Likelihood:
    sums, counts = np.zeros(documents), np.zeros(documents, np.int64)
    for batch in batches:
        logits = model(batch.tokens, batch.documents if model.config.document_mask else None)
        add(sums, counts, token_nll(logits, batch.targets), batch.documents)
    return Likelihood(sums, counts)


def token_nll(
    logits: Float[Tensor, "batch token vocab"], targets: Int[Tensor, "batch token"]
) -> Float[Tensor, "batch token"]:
    """In fp32, or fp64 for logits in fp64: what sums them up is fp64."""
    inside = logits if logits.dtype == torch.float64 else logits.float()
    return inside.logsumexp(-1) - inside.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def add(sums: np.ndarray, counts: np.ndarray, nll: Tensor, documents: Tensor) -> None:
    """Add a batch's tokens to their documents' sums."""
    numbers = documents.flatten().cpu().numpy()
    sums += np.bincount(numbers, nll.flatten().cpu().numpy(), minlength=len(sums))
    counts += np.bincount(numbers, minlength=len(sums))
