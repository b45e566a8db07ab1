"""What n pairs can show, before any run: power, pairs needed, smallest effect in reach. Pure functions.

The differences are taken as normal with standard deviation `sd`, in the unit of `effect`. `level` is the two-sided
level of the paired t test; for equivalence it is the level of each of the two one-sided tests.
"""

import math
from typing import cast

from scipy.integrate import quad  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]
from scipy.optimize import brentq  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]
from scipy.special import (  # pyright: ignore[reportMissingTypeStubs]
    gammainccinv,
    gammaincinv,
    gammaln,
    ndtr,
    stdtrit,
)
from scipy.stats import nct  # pyright: ignore[reportMissingTypeStubs]

from depthroute.errors import ArgumentError

MOST_PAIRS = 1_000_000
SMALLEST_LEVEL = 1e-4
# In standard errors. At any level that is allowed, and 2 pairs or more, the power there is 1 to the last digit.
FURTHEST = 1e5
NEGLIGIBLE = 1e-17


def power(effect: float, sd: float, n: int, level: float = 0.05) -> float:
    """Chance that the two-sided paired t test of n pairs finds a true mean difference of `effect` (exact)."""
    _check_finite(effect)
    _check_positive("sd", sd)
    return _rejected(abs(effect) / sd * _root(n), n, level)


def pairs_needed(effect: float, sd: float, level: float = 0.05, power: float = 0.8) -> int:
    """The smallest number of pairs, 2 at least, whose power at `effect` reaches `power`."""
    _check_finite(effect)
    _check_positive("sd", sd)
    _check_power(power, level)
    ratio = abs(effect) / sd

    def suffices(n: int) -> bool:
        return _rejected(ratio * math.sqrt(n), n, level) >= power

    if not suffices(MOST_PAIRS):
        raise ArgumentError(
            f"an effect of {effect} at sd {sd} needs more than {MOST_PAIRS} pairs; ask for a larger one"
        )
    short, enough = 1, MOST_PAIRS
    while enough - short > 1:
        middle = (short + enough) // 2
        short, enough = (short, middle) if suffices(middle) else (middle, enough)
    return enough


def detectable_difference(n: int, sd: float, level: float = 0.05, power: float = 0.8) -> float:
    """The smallest true mean difference that n pairs find with chance `power`."""
    _check_positive("sd", sd)
    _check_power(power, level)
    root = _root(n)

    def excess(shift: float) -> float:
        return _rejected(shift, n, level) - power

    return cast(float, brentq(excess, 0.0, FURTHEST, xtol=1e-10)) * sd / root


def equivalence_power(true_difference: float, margin: float, sd: float, n: int, level: float = 0.05) -> float:
    """Chance that two one-sided t tests of n pairs claim equivalence within `margin`. Numeric integration.

    Given the observed standard deviation the chance is a normal probability; it is averaged over the distribution of
    that standard deviation to about 1e-8. At a true difference of `margin` it is the rate of false claims.
    """
    _check_finite(true_difference)
    _check_positive("margin", margin)
    _check_positive("sd", sd)
    _check_level(level)
    root, freedom = _root(n), n - 1
    critical = float(stdtrit(freedom, 1.0 - level))
    near, far = ((margin + sign * abs(true_difference)) / sd * root for sign in (-1.0, 1.0))
    half = freedom / 2.0
    scale = math.log(2.0) + half * math.log(half) - float(gammaln(half))

    def claimed(s: float) -> float:
        density = math.exp(scale + (freedom - 1) * math.log(s) - half * s * s)
        return density * (float(ndtr(near - critical * s)) - float(ndtr(critical * s - far)))

    # s is the observed standard deviation over the true one; above `last` no mean is near enough to claim anything.
    last = margin / sd * root / critical
    low = math.sqrt(float(gammaincinv(half, NEGLIGIBLE)) / half)
    high = min(last, math.sqrt(float(gammainccinv(half, NEGLIGIBLE)) / half))
    if high <= low:
        return 0.0
    # Around near / critical the claim goes from certain to hopeless; the integration must not step over it. Nor can it
    # take a piece that is no longer than rounding.
    least = 1e-9 * high
    places = ((near + step) / critical for step in (-8.0, 0.0, 8.0))
    turns = [turn for turn in places if low + least < turn < high - least]
    total, _ = cast(tuple[float, float], quad(claimed, low, high, points=turns, epsabs=1e-9, epsrel=1e-9, limit=500))
    return min(max(total, 0.0), 1.0)


def smallest_exact_p(n: int) -> float:
    """The smallest two-sided p that the exact sign-flip test of n pairs can give: 2 / 2^n."""
    if n < 1:
        raise ArgumentError(f"at least 1 pair is needed, not {n}")
    return 2.0 ** (1 - n)


def can_reach(level: float, n: int) -> bool:
    """Whether the exact sign-flip test of n pairs can reject at `level` at all: .05 needs 6 pairs."""
    _check_level(level)
    return smallest_exact_p(n) <= level


def _rejected(shift: float, n: int, level: float) -> float:
    """Two-sided power at a true mean of `shift` standard errors: both tails of the noncentral t."""
    _check_level(level)
    critical = float(stdtrit(n - 1, 1.0 - level / 2.0))
    found = _above(critical, n - 1, min(shift, FURTHEST))
    # The wrong direction. Beyond 8 its chance is below 1e-15, and scipy's series for it can fail to converge.
    return found if shift > 8.0 else min(found + _above(critical, n - 1, -shift), 1.0)


def _above(critical: float, freedom: int, shift: float) -> float:
    """Chance that the noncentral t exceeds `critical`."""
    return float(nct.sf(critical, freedom, shift))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def _root(n: int) -> float:
    if n < 2:
        raise ArgumentError(f"at least 2 pairs are needed, not {n}")
    return math.sqrt(n)


def _check_finite(effect: float) -> None:
    if not math.isfinite(effect):
        raise ArgumentError(f"the effect must be a finite number, not {effect}")


def _check_positive(name: str, value: float) -> None:
    if not 1e-90 <= value <= 1e90:
        raise ArgumentError(f"{name} must be a positive number, not {value}")


def _check_level(level: float) -> None:
    if not SMALLEST_LEVEL <= level < 0.5:
        raise ArgumentError(f"level must lie between {SMALLEST_LEVEL} and 0.5, not {level}")


def _check_power(power: float, level: float) -> None:
    if not level < power < 1.0:
        raise ArgumentError(f"power must lie between the level {level} and 1, not {power}")
