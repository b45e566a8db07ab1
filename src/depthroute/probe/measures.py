"""The measures of depth weights, as formulas. `a` is a read's softmax over its S sources, at one token.

    entropy                 H(a) = - sum_i a_i log a_i                                nats, 0 .. log S
    effective sources       exp H(a)  and  1 / sum_i a_i^2                            1 .. S
    Jensen-Shannon          JS(a, b) = H((a + b) / 2) - (H(a) + H(b)) / 2             nats, 0 .. log 2
    token dependence        V / (V + sum_i (mean a_i - 1/S)^2),  V = sum_i var(a_i)   over tokens, 0 .. 1
    participation           (sum_j q_j^2)^2 / sum_j q_j^4                             coordinates, 1 .. r
    RMS                     sqrt(mean_j x_j^2), then the mean over tokens

A mean over tokens has an interval over documents: tokens of one text depend on each other, documents are taken not to.
With s_D the sum over the n_D tokens of document D and m = sum s_D / sum n_D,

    m  +/-  t(D - 1)  sqrt( D / (D - 1) sum_D (s_D - m n_D)^2 ) / sum_D n_D

the ratio estimator with documents as clusters (Cochran, *Sampling Techniques*, 1977, section 6.3); with documents of
equal length it is the t interval of their means.
"""

from typing import NamedTuple

import numpy as np
import scipy.stats
import torch
from jaxtyping import Float
from torch import Tensor


def entropy(weights: Float[Tensor, "*any source"]) -> Float[Tensor, "*any"]:
    return -torch.xlogy(weights, weights).sum(-1)


def effective_squares(weights: Float[Tensor, "*any source"]) -> Float[Tensor, "*any"]:
    return 1 / weights.square().sum(-1)


def jensen_shannon(first: Float[Tensor, "*any source"], second: Float[Tensor, "*any source"]) -> Float[Tensor, "*any"]:
    return entropy((first + second) / 2) - (entropy(first) + entropy(second)) / 2


def token_dependence(
    mean: Float[Tensor, "*any source"], of_squares: Float[Tensor, "*any source"]
) -> list[float | None]:
    """From the token means of the weights and of their squares; None for a read that is uniform at every token.

    Uniform is what departs from 1 / S by less than a millionth: a softmax in fp32 rounds by more than nothing.
    """
    between = (of_squares - mean.square()).clamp_min(0).sum(-1)
    lasting = (mean - 1 / mean.shape[-1]).square().sum(-1)
    return [(b / (b + c)).item() if b + c > 1e-12 else None for b, c in zip(between, lasting, strict=True)]


def participation(query: Float[Tensor, "*any rank"]) -> list[float | None]:
    """None for a query that is zero."""
    squares, fourth = query.square().sum(-1), query.pow(4).sum(-1)
    return [(s**2 / f).item() if f > 0 else None for s, f in zip(squares, fourth, strict=True)]


def rms(values: Float[Tensor, "*any width"]) -> Float[Tensor, "*any"]:
    return values.square().mean(-1).sqrt()


class Interval(NamedTuple):
    """A mean over tokens and its interval over documents; no ends where there are fewer than two documents."""

    mean: float
    low: float | None
    high: float | None


def over_documents(sums: np.ndarray, counts: np.ndarray, level: float = 0.05) -> Interval:
    """The mean and its interval, from every document's sum and its number of tokens."""
    seen = counts > 0
    sums, counts = sums[seen].astype(np.float64), counts[seen].astype(np.float64)
    documents, tokens = len(counts), counts.sum()
    mean = float(sums.sum() / tokens)
    if documents < 2:
        return Interval(mean, None, None)
    spread = np.sqrt(documents / (documents - 1) * np.square(sums - mean * counts).sum()) / tokens
    half = float(scipy.stats.t.ppf(1 - level / 2, documents - 1) * spread)
    return Interval(mean, mean - half, mean + half)
