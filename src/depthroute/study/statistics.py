"""What paired seeds say about a difference: t interval, tests, equivalence, bootstrap and Holm. Pure functions.

A difference is one number a seed: the arm's value minus the baseline's at that same seed. `level` is the coverage of
an interval (.95), or for a test the rate of false claims (.05). docs/statistics.md says what each number means.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # pyright: ignore[reportMissingTypeStubs]  (scipy ships none)
from scipy.special import stdtr, stdtrit  # pyright: ignore[reportMissingTypeStubs]

from depthroute.errors import ArgumentError

SIGN_FLIP_PAIRS = 40
RESAMPLES = 9999
BOOTSTRAP_SEED = 0
SMALLEST, LARGEST = 1e-90, 1e90


@dataclass(frozen=True)
class Paired:
    """Summary of paired differences, in the unit of the differences. `low .. high` is the t interval at `level`.

    Equal differences have no spread: sd is 0, the interval has width 0 and covers nothing, and `t_p` is None.
    """

    pairs: int
    mean: float
    sd: float
    level: float
    low: float
    high: float
    t_p: float | None
    sign_flip_p: float


@dataclass(frozen=True)
class Equivalence:
    """Two one-sided t tests at `level` against a margin. `low .. high` is the t interval at 1 - 2 level.

    `equivalent` says that p is at most the level, which is to say that the interval lies inside the margin.
    Differences without spread allow no test: p is None and `equivalent` False; ask `identical` about them first.
    """

    p: float | None
    low: float
    high: float
    equivalent: bool


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
        t_p=t_p(differences),
        sign_flip_p=sign_flip_p(differences),
    )


def paired_differences(arm: Mapping[int, float], baseline: Mapping[int, float]) -> dict[int, float]:
    """`arm - baseline` at every seed that both have, in the baseline's order."""
    return {seed: arm[seed] - value for seed, value in baseline.items() if seed in arm}


def identical(differences: Sequence[float]) -> bool:
    """Whether all differences are exactly 0: arm and baseline gave the same numbers, and there is nothing to test."""
    return not bool(_checked(differences, least=1).any())


def mean(values: Sequence[float]) -> float:
    array = _checked(values, least=1)
    # The sum of equal values rounds, and an invented spread would follow from it.
    return float(array[0]) if _constant(array) else float(array.mean())


def standard_deviation(values: Sequence[float]) -> float:
    """With the divisor n - 1. Exactly 0 for equal values, and for no others."""
    array = _checked(values, least=2)
    return 0.0 if _constant(array) else float(array.std(ddof=1))


def t_interval(differences: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Two-sided Student interval of the mean, `n - 1` degrees of freedom."""
    _check_between(level, 1.0)
    count = len(differences)
    centre, spread = mean(differences), standard_deviation(differences)
    half = float(stdtrit(count - 1, (1.0 + level) / 2.0)) * spread / count**0.5
    return centre - half, centre + half


def t_p(differences: Sequence[float]) -> float | None:
    """Two-sided p of the paired t test that the mean is 0. None without spread: t is then 0/0 or infinite."""
    centre, spread = mean(differences), standard_deviation(differences)
    if spread == 0.0:
        return None
    count = len(differences)
    return 2.0 * float(stdtr(count - 1, -abs(centre) / (spread / count**0.5)))


def equivalence(differences: Sequence[float], margin: float, level: float = 0.05) -> Equivalence:
    """Test that the true mean lies within `margin` of 0; at most `level` of the claims at the margin are false."""
    if not SMALLEST <= margin <= LARGEST:
        raise ArgumentError(f"the equivalence margin must be a positive number, not {margin}")
    _check_between(level, 0.5)
    low, high = t_interval(differences, 1.0 - 2.0 * level)
    centre, spread = mean(differences), standard_deviation(differences)
    if spread == 0.0:
        return Equivalence(p=None, low=low, high=high, equivalent=False)
    count = len(differences)
    # The larger p of the two tests belongs to the margin that is nearer to the mean.
    p = float(stdtr(count - 1, (abs(centre) - margin) / (spread / count**0.5)))
    return Equivalence(p=p, low=low, high=high, equivalent=p <= level)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment, in the order given: reject where the adjusted p is below the level.

    The family is what was planned. A planned contrast that has no p (identical arms) takes part with p = 1.
    """
    ps = np.asarray(p_values, dtype=np.float64)
    if not bool(((ps >= 0.0) & (ps <= 1.0)).all()):
        raise ArgumentError("a p value must lie between 0 and 1")
    order = np.argsort(ps, kind="stable")
    stepped = np.maximum.accumulate(ps[order] * np.arange(len(ps), 0, -1))
    adjusted = np.empty_like(ps)
    adjusted[order] = np.minimum(stepped, 1.0)
    return [float(p) for p in adjusted]


def percentile_bootstrap(differences: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Percentile bootstrap interval of the mean. Descriptive only: at few pairs it is far too narrow.

    None with fewer than 3 pairs (two pairs resample to three means only) and without spread: no interval to speak of.
    """
    return _bootstrap(differences, level, "percentile")


def bca_bootstrap(differences: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Bias-corrected and accelerated bootstrap interval of the mean: descriptive, None as in percentile_bootstrap."""
    return _bootstrap(differences, level, "BCa")


def _bootstrap(
    differences: Sequence[float], level: float, method: Literal["percentile", "BCa"]
) -> tuple[float, float] | None:
    _check_between(level, 1.0)
    # Sorted, so that the order of the seeds cannot change what a fixed generator draws.
    values = np.sort(_checked(differences, least=2))
    if len(values) < 3 or _constant(values):
        return None
    origin, width = float(values[0]), float(values[-1] - values[0])
    # On 0 .. 1, because BCa's sums of cubes vanish for tiny spreads.
    result: Any = stats.bootstrap(  # pyright: ignore[reportUnknownMemberType]
        ((values - origin) / width,),
        np.mean,
        confidence_level=level,
        n_resamples=RESAMPLES,
        method=method,
        rng=np.random.default_rng(BOOTSTRAP_SEED),
    )
    interval = result.confidence_interval
    return origin + width * float(interval.low), origin + width * float(interval.high)


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
    sizes = np.abs(array)
    if not bool(((sizes == 0.0) | ((sizes >= SMALLEST) & (sizes <= LARGEST))).all()):
        raise ArgumentError(f"a value is neither 0 nor between {SMALLEST} and {LARGEST} in size: its square is lost")
    return array


def _constant(values: NDArray[np.float64]) -> bool:
    return bool((values == values[0]).all())


def _check_between(level: float, end: float) -> None:
    if not 0.0 < level < end:
        raise ArgumentError(f"level must lie between 0 and {end}, not {level}")
