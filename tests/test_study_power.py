"""What n pairs can show: published values, numeric integration, ten thousand simulated studies, and properties."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from depthroute.errors import ArgumentError
from depthroute.study.power import (
    can_reach,
    detectable_difference,
    equivalence_power,
    pairs_needed,
    power,
    smallest_exact_p,
)
from depthroute.study.statistics import equivalence, sign_flip_p, t_p

STUDIES, PAIRS, SD = 10_000, 6, 0.01
PAIR_COUNTS = st.integers(2, 60)
LEVELS = st.sampled_from([1e-4, 0.01, 0.05, 0.2])
EFFECTS = st.floats(0.0, 20.0)


def studies(true_difference: float, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(true_difference, SD, (STUDIES, PAIRS))


def equivalent_within(margin: float, differences: np.ndarray) -> np.ndarray:
    """The two one-sided tests for a study a row; that they are ours is checked on some."""
    half = stats.t.isf(0.05, PAIRS - 1) * differences.std(axis=1, ddof=1) / PAIRS**0.5
    claimed = abs(differences.mean(axis=1)) + half <= margin
    assert claimed[:1000].tolist() == [equivalence(row, margin).equivalent for row in differences[:1000].tolist()]
    return claimed


def deviation(rate: float) -> float:
    """Monte-Carlo standard error of a rate over the simulated studies."""
    return (rate * (1.0 - rate) / STUDIES) ** 0.5


@pytest.mark.parametrize(
    ("effect", "n", "expected"),
    # Cohen's d of a paired t test, two-sided level .05; the textbook pairs (34 for d = .5, 199 for d = .2).
    [(0.5, 34, 0.8078), (0.2, 199, 0.8017), (0.8, 15, 0.8213)],
)
def test_power_agrees_with_published_tables(effect: float, n: int, expected: float) -> None:
    assert power(effect, 1.0, n) == pytest.approx(expected, abs=2e-4)
    assert pairs_needed(effect, 1.0) == n


@pytest.mark.parametrize("n", [2, 3, 6, 12])
@pytest.mark.parametrize("effect", [0.0, 0.3, 1.0, 2.5])
def test_power_is_the_normal_probability_averaged_over_the_observed_deviation(effect: float, n: int) -> None:
    critical, shift = stats.t.isf(0.025, n - 1), effect * n**0.5
    # Equal shares of the distribution of the observed deviation: the midpoint rule.
    s = (stats.chi2.ppf((np.arange(200_000) + 0.5) / 200_000, n - 1) / (n - 1)) ** 0.5
    expected = np.mean(stats.norm.sf(critical * s - shift) + stats.norm.cdf(-critical * s - shift))
    assert power(effect, 1.0, n) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("n", [2, 3, 6, 12])
@pytest.mark.parametrize("true_difference", [0.0, 0.5, 1.5, 2.0])
def test_equivalence_power_is_the_probability_averaged_over_the_observed_mean(n: int, true_difference: float) -> None:
    # The other order of the two integrals: given the mean, the chance that the observed deviation is small enough.
    m = true_difference + (np.arange(-200_000, 200_001) / 20_000) / n**0.5
    allowed = np.maximum(1.5 - abs(m), 0.0) * n**0.5 / stats.t.isf(0.05, n - 1)
    density = stats.norm.pdf(m, true_difference, n**-0.5)
    expected = np.sum(stats.chi2.cdf((n - 1) * allowed**2, n - 1) * density) * (m[1] - m[0])
    assert equivalence_power(true_difference, 1.5, 1.0, n) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("margin", "at_zero", "at_margin"), [(0.01, 40.9, 4.8), (0.015, 86.3, 5.0), (0.02, 98.7, 5.0)])
def test_ten_thousand_simulated_studies_claim_equivalence_as_often_as_documented(
    margin: float, at_zero: float, at_margin: float
) -> None:
    """False claims at the margin: at most 5 % + 3 standard errors, each 0.22 points. The chance elsewhere: 4 errors."""
    for true_difference, documented in ((0.0, at_zero), (margin, at_margin), (0.05, 0.0)):
        exact = equivalence_power(true_difference, margin, SD, PAIRS)
        assert 100 * exact == pytest.approx(documented, abs=0.05)
        rate = equivalent_within(margin, studies(true_difference, seed=7)).mean()
        assert abs(rate - exact) <= 4 * deviation(exact)
        if true_difference == margin:
            assert exact <= 0.05 + 1e-9
            assert rate <= 0.05 + 3 * deviation(0.05)


@pytest.mark.parametrize(("true_difference", "documented"), [(0.0, 5.0), (0.005, 17.1), (0.01, 50.7), (0.05, 100.0)])
def test_ten_thousand_simulated_studies_find_a_difference_as_often_as_documented(
    true_difference: float, documented: float
) -> None:
    exact = power(true_difference, SD, PAIRS)
    assert 100 * exact == pytest.approx(documented, abs=0.05)
    differences = studies(true_difference, seed=8)
    ps = stats.ttest_1samp(differences, 0.0, axis=1).pvalue
    assert [t_p(row) for row in differences[:500].tolist()] == pytest.approx(ps[:500].tolist(), rel=1e-9)
    rate = (ps <= 0.05).mean()
    assert abs(rate - exact) <= 4 * deviation(exact) + 1e-12


def test_detectable_differences_and_pairs_are_the_documented_ones() -> None:
    detectable = [round(detectable_difference(n, SD), 4) for n in (3, 5, 6, 8, 10, 20)]
    assert detectable == [0.0326, 0.0168, 0.0143, 0.0116, 0.01, 0.0066]
    assert [pairs_needed(effect, SD) for effect in (0.005, 0.01, 0.02, 0.05)] == [34, 10, 5, 3]


@given(EFFECTS, PAIR_COUNTS, LEVELS)
def test_power_grows_with_pairs_effect_and_level_and_ignores_the_sign(effect: float, n: int, level: float) -> None:
    found = power(effect, 1.0, n, level)
    assert level - 1e-9 <= found <= 1.0
    assert power(effect, 1.0, n + 1, level) >= found - 1e-9
    assert power(effect + 0.1, 1.0, n, level) >= found - 1e-9
    assert power(effect, 1.0, n, 1.5 * level) >= found
    assert power(-effect, 1.0, n, level) == found
    assert power(4 * effect, 4.0, n, level) == found


@given(EFFECTS, PAIR_COUNTS, LEVELS)
def test_power_at_no_effect_is_the_level(effect: float, n: int, level: float) -> None:
    assert power(0.0, 1.0 + effect, n, level) == pytest.approx(level, rel=1e-6)


@settings(max_examples=40)
@given(st.floats(0.02, 50.0), LEVELS, st.floats(0.3, 0.999))
def test_the_pairs_needed_are_the_fewest_that_suffice(effect: float, level: float, wanted: float) -> None:
    n = pairs_needed(effect, 1.0, level, wanted)
    assert power(effect, 1.0, n, level) >= wanted
    assert n == 2 or power(effect, 1.0, n - 1, level) < wanted


@settings(max_examples=40)
@given(PAIR_COUNTS, st.floats(1e-6, 1e3), LEVELS, st.floats(0.3, 0.999))
def test_the_detectable_difference_has_the_wanted_power(n: int, sd: float, level: float, wanted: float) -> None:
    effect = detectable_difference(n, sd, level, wanted)
    assert power(effect, sd, n, level) == pytest.approx(wanted, abs=1e-8)


@settings(max_examples=60)
@given(st.floats(0.0, 5.0), st.floats(0.01, 10.0), PAIR_COUNTS, LEVELS)
def test_equivalence_power_falls_with_distance_and_grows_with_margin(
    true_difference: float, margin: float, n: int, level: float
) -> None:
    found = equivalence_power(true_difference, margin, 1.0, n, level)
    assert equivalence_power(-true_difference, margin, 1.0, n, level) == found
    assert equivalence_power(true_difference + 0.1, margin, 1.0, n, level) <= found + 1e-7
    assert equivalence_power(true_difference, margin + 0.1, 1.0, n, level) >= found - 1e-7
    assert equivalence_power(2 * true_difference, 2 * margin, 2.0, n, level) == found


@settings(max_examples=60)
@given(st.floats(1e-3, 1e3), PAIR_COUNTS, LEVELS)
def test_false_equivalence_is_never_above_the_level(margin: float, n: int, level: float) -> None:
    assert equivalence_power(margin, margin, 1.0, n, level) <= level + 1e-7


@given(PAIR_COUNTS, LEVELS, st.floats(-12.0, 12.0))
def test_no_size_of_effect_leaves_the_range_of_a_probability(n: int, level: float, digits: float) -> None:
    assert level * (1 - 1e-6) <= power(10.0**digits, 1.0, n, level) <= 1.0
    assert 0.0 <= equivalence_power(0.0, 10.0**digits, 1.0, n, level) <= 1.0


@pytest.mark.parametrize(("n", "expected", "reaches"), [(1, 1.0, False), (5, 0.0625, False), (6, 0.03125, True)])
def test_five_pairs_cannot_reach_five_percent_and_six_can(n: int, expected: float, reaches: bool) -> None:
    assert smallest_exact_p(n) == expected == sign_flip_p([0.1] * n)
    assert can_reach(0.05, n) is reaches
    assert can_reach(expected if expected < 0.5 else 0.4, n) is (expected < 0.5)


def test_the_floor_of_many_pairs_is_no_overflow() -> None:
    assert smallest_exact_p(5000) == 0.0


def test_senseless_questions_are_refused() -> None:
    with pytest.raises(ArgumentError, match="more than 1000000 pairs"):
        pairs_needed(0.0, 1.0)
    with pytest.raises(ArgumentError, match="sd must be a positive number"):
        power(0.1, 0.0, 5)
    with pytest.raises(ArgumentError, match="margin must be a positive number"):
        equivalence_power(0.0, -1.0, 1.0, 5)
    with pytest.raises(ArgumentError, match="the effect must be a finite number"):
        power(math.nan, 1.0, 5)
    with pytest.raises(ArgumentError, match="at least 2 pairs"):
        detectable_difference(1, 1.0)
    with pytest.raises(ArgumentError, match="at least 1 pair "):
        smallest_exact_p(0)
    with pytest.raises(ArgumentError, match="level must lie"):
        power(1.0, 1.0, 5, 0.5)
    with pytest.raises(ArgumentError, match="power must lie"):
        detectable_difference(5, 1.0, 0.05, 0.05)
    with pytest.raises(ArgumentError, match="power must lie"):
        pairs_needed(1.0, 1.0, 0.05, 1.0)
