"""What paired seeds say about a difference: mean, spread, t interval and exact sign-flip test. Pure functions.

A difference is one number a seed: the arm's value minus the baseline's at that same seed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit  # pyright: ignore[reportMissingTypeStubs]  (scipy ships none)

from depthroute.errors import ArgumentError

SIGN_FLIP_PAIRS = 40


@dataclass(frozen=True)
class Paired:
    """Summary of paired differences, in the unit of the differences. `low .. high` is the t interval at `level`."""

    pairs: int
    mean: float
    sd: float
    level: float
    low: float
    high: float
    sign_flip_p: float


def paired(differences: Sequence[float], level: float = 0.95) -> Paired:
    """Summarise at least 2 paired differences. ArgumentError where there are fewer, or one is not finite."""
    low, high = t_interval(differences, level)
    return Paired(
        pairs=len(differences),
        mean=mean(differences),
        sd=standard_deviation(differences),
        level=level,
        low=low,
        high=high,
        sign_flip_p=sign_flip_p(differences),
    )


def paired_differences(arm: Mapping[int, float], baseline: Mapping[int, float]) -> dict[int, float]:
    """`arm - baseline` at every seed that both have, in the baseline's order."""
    return {seed: arm[seed] - value for seed, value in baseline.items() if seed in arm}


def mean(values: Sequence[float]) -> float:
    return float(_checked(values, least=1).mean())


def standard_deviation(values: Sequence[float]) -> float:
    """With the divisor n - 1."""
    return float(_checked(values, least=2).std(ddof=1))


def t_interval(differences: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Two-sided Student interval of the mean, `n - 1` degrees of freedom."""
    if not 0.0 < level < 1.0:
        raise ArgumentError(f"level must lie between 0 and 1, not {level}")
    count = len(differences)
    centre, spread = mean(differences), standard_deviation(differences)
    half = float(stdtrit(count - 1, (1.0 + level) / 2.0)) * spread / count**0.5
    return centre - half, centre + half


def sign_flip_p(differences: Sequence[float]) -> float:
    """Exact two-sided p: the share of the 2^n sign patterns whose |sum| is at least the observed one.

    With n pairs it is never below 2 / 2^n, so 5 pairs cannot give less than .0625.
    """
    values = _checked(differences, least=1)
    if len(values) > SIGN_FLIP_PAIRS:
        raise ArgumentError(f"the exact sign-flip test takes at most {SIGN_FLIP_PAIRS} pairs, not {len(values)}")
    # Sums of equal patterns differ by rounding; a tie must count as one.
    bound = abs(float(values.sum())) - 1e-10 * float(np.abs(values).sum())
    half = len(values) // 2
    left, right = _signed_sums(values[:half]), np.sort(_signed_sums(values[half:]))
    above = len(right) - np.searchsorted(right, bound - left, side="left")
    # The patterns are symmetric: as many lie below -bound as above bound. A bound of zero or less holds for all.
    return 1.0 if bound <= 0.0 else 2.0 * float(above.sum()) / 2.0 ** len(values)


def _signed_sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def _checked(values: Sequence[float], least: int) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if len(array) < least:
        raise ArgumentError(f"at least {least} values are needed here, not {len(array)}")
    if not bool(np.isfinite(array).all()):
        raise ArgumentError("a value is not finite")
    return array
