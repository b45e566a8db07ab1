"""Interleaved measurements: A B C A B C ..., so that whatever else the machine does falls on all of them alike."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch
from scipy.stats import binom

Name = TypeVar("Name")
WARM = 3
LEVEL = 0.95


class Median(NamedTuple):
    """A median and the interval of order statistics that holds the true one at least 95 % of the time."""

    value: float
    low: float
    high: float


def interleaved(candidates: Mapping[Name, Callable[[], object]], rounds: int) -> dict[Name, list[float]]:
    """Seconds of every candidate in every round, after a few rounds that do not count."""
    seconds: dict[Name, list[float]] = {name: [] for name in candidates}
    for number in range(WARM + rounds):
        for name, candidate in candidates.items():
            settle()
            began = time.perf_counter()
            candidate()
            settle()
            if number >= WARM:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def median(numbers: Sequence[float]) -> Median:
    """With few numbers the interval is their whole range, and its level lower."""
    ordered, n = sorted(numbers), len(numbers)
    rank = max(int(binom.ppf((1 - LEVEL) / 2, n, 0.5)), 1)
    return Median(statistics.median(ordered), ordered[rank - 1], ordered[n - rank])


def ratio(of: Sequence[float], to: Sequence[float]) -> Median:
    """The median, over rounds, of one time by the other of the same round."""
    return median([x / y for x, y in zip(of, to, strict=True)])
