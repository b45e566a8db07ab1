"""Paired statistics: published examples, brute force, scipy's own tests, simulation, and properties."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from depthroute.errors import ArgumentError
from depthroute.study.statistics import (
    bca_bootstrap,
    equivalence,
    holm,
    identical,
    mean,
    paired,
    paired_differences,
    percentile_bootstrap,
    sign_flip_p,
    standard_deviation,
    t_interval,
    t_p,
)

S_SCALE = (-0.0290, -0.0270, -0.0294, -0.0300, -0.0352)
M_SCALE = (-0.0181, -0.0120, -0.0211, -0.0292, -0.0430)
VALUES = st.lists(st.integers(-1000, 1000).map(lambda n: n / 64), min_size=2, max_size=9)
SPREAD = VALUES.filter(lambda values: len(set(values)) > 1)
P_VALUES = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("differences", "expected_mean", "expected_sd", "expected_interval", "expected_bootstrap"),
    [
        (S_SCALE, -0.0301, 0.0031, (-0.0339, -0.0263), (-0.0329, -0.0281)),
        (M_SCALE, -0.0247, 0.0120, (-0.0396, -0.0098), (-0.0347, -0.0163)),
    ],
)
def test_five_published_pairs_give_the_published_summary(
    differences: tuple[float, ...],
    expected_mean: float,
    expected_sd: float,
    expected_interval: tuple[float, float],
    expected_bootstrap: tuple[float, float],
) -> None:
    summary = paired(differences)
    assert summary.pairs == 5
    assert summary.mean == pytest.approx(expected_mean, abs=6e-5)
    assert summary.sd == pytest.approx(expected_sd, abs=6e-5)
    # The published differences are themselves rounded to four digits.
    assert (summary.low, summary.high) == pytest.approx(expected_interval, abs=1e-4)
    assert summary.sign_flip_p == 0.0625
    assert percentile_bootstrap(differences) == pytest.approx(expected_bootstrap, abs=1e-4)


@given(VALUES)
def test_the_sign_flip_p_is_the_share_of_all_patterns_counted_one_by_one(differences: list[float]) -> None:
    observed = abs(sum(differences))
    patterns = list(itertools.product((1, -1), repeat=len(differences)))
    extreme = sum(abs(sum(s * d for s, d in zip(signs, differences, strict=True))) >= observed for signs in patterns)
    assert sign_flip_p(differences) == extreme / len(patterns)


@given(VALUES, st.integers(-64, 64))
def test_a_shift_moves_the_interval_and_leaves_the_spread(differences: list[float], shift: int) -> None:
    before, after = paired(differences), paired([value + shift for value in differences])
    assert after.mean == pytest.approx(before.mean + shift, abs=1e-9)
    assert after.low == pytest.approx(before.low + shift, abs=1e-9)
    assert after.high == pytest.approx(before.high + shift, abs=1e-9)
    assert after.sd == pytest.approx(before.sd, abs=1e-9)


@given(VALUES)
def test_swapping_arm_and_baseline_turns_everything_round_and_keeps_p(differences: list[float]) -> None:
    one, other = paired(differences), paired([-value for value in differences])
    assert (other.mean, other.low, other.high) == pytest.approx((-one.mean, -one.high, -one.low), abs=1e-12)
    assert (other.sd, other.sign_flip_p) == pytest.approx((one.sd, one.sign_flip_p), abs=1e-12)


@given(VALUES.flatmap(lambda values: st.tuples(st.just(values), st.permutations(values))))
def test_the_order_of_the_seeds_does_not_matter(orders: tuple[list[float], list[float]]) -> None:
    one, other = paired(orders[0]), paired(orders[1])
    assert other.sign_flip_p == one.sign_flip_p
    assert (other.mean, other.sd, other.low, other.high) == pytest.approx(
        (one.mean, one.sd, one.low, one.high), abs=1e-12
    )


@given(VALUES)
def test_a_wider_level_contains_the_narrower(differences: list[float]) -> None:
    narrow, wide = t_interval(differences, 0.9), t_interval(differences, 0.99)
    assert wide[0] <= narrow[0] <= narrow[1] <= wide[1]


@given(SPREAD)
def test_t_tests_and_equivalence_are_those_of_scipy(differences: list[float]) -> None:
    assert t_p(differences) == pytest.approx(stats.ttest_1samp(differences, 0.0).pvalue, rel=1e-9)
    arm, baseline = [5.0 + value for value in differences], [5.0] * len(differences)
    assert t_p(differences) == pytest.approx(stats.ttest_rel(arm, baseline).pvalue, rel=1e-9)
    above = stats.ttest_1samp(differences, -3.0, alternative="greater")
    below = stats.ttest_1samp(differences, 3.0, alternative="less")
    found = equivalence(differences, 3.0)
    assert found.p == pytest.approx(max(above.pvalue, below.pvalue), rel=1e-9)
    interval = stats.ttest_1samp(differences, 0.0).confidence_interval(0.9)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-9, abs=1e-9)


def test_the_sign_flip_p_is_that_of_scipys_exact_permutation_test() -> None:
    values = (0.3, -0.1, 0.25, 0.4, -0.05, 0.2, 0.31)
    found = stats.permutation_test((np.array(values),), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert sign_flip_p(values) == pytest.approx(found.pvalue)


@given(SPREAD, st.floats(0.05, 20.0), st.sampled_from([0.01, 0.05, 0.2]))
def test_equivalence_holds_where_the_interval_lies_inside_the_margin(
    differences: list[float], margin: float, level: float
) -> None:
    found = equivalence(differences, margin, level)
    reach = max(abs(found.low), abs(found.high))
    if abs(reach - margin) > 1e-9:
        assert found.equivalent == (reach < margin)


@given(SPREAD, st.floats(0.05, 20.0), st.sampled_from([2.0**-20, 0.5, 8.0]))
def test_equivalence_ignores_the_sign_and_the_unit(differences: list[float], margin: float, unit: float) -> None:
    found = equivalence(differences, margin)
    flipped = equivalence([-value for value in differences], margin)
    assert (flipped.p, flipped.low, flipped.high, flipped.equivalent) == (
        found.p,
        -found.high,
        -found.low,
        found.equivalent,
    )
    scaled = equivalence([unit * value for value in differences], unit * margin)
    assert (scaled.p, scaled.equivalent) == (found.p, found.equivalent)
    assert (scaled.low, scaled.high) == (unit * found.low, unit * found.high)


@given(P_VALUES)
def test_holm_is_the_closed_test_with_bonferroni_on_every_subset(ps: list[float]) -> None:
    indices = range(len(ps))
    subsets = [set(c) for size in indices for c in itertools.combinations(indices, size + 1)]
    expected = [max(min(1.0, len(s) * min(ps[j] for j in s)) for s in subsets if i in s) for i in indices]
    assert holm(ps) == pytest.approx(expected, rel=1e-12)


@given(P_VALUES, st.randoms(use_true_random=False))
def test_holm_keeps_the_order_of_the_p_values_and_lowers_none(ps: list[float], shuffler) -> None:
    adjusted = holm(ps)
    assert all(raw <= after <= 1.0 for raw, after in zip(ps, adjusted, strict=True))
    ranked = [after for _, after in sorted(zip(ps, adjusted, strict=True))]
    assert ranked == sorted(ranked)
    order = list(range(len(ps)))
    shuffler.shuffle(order)
    assert holm([ps[i] for i in order]) == [adjusted[i] for i in order]


def test_holm_on_an_example_worked_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


@settings(max_examples=15)
@given(SPREAD.filter(lambda values: len(values) > 2))
def test_bootstrap_intervals_repeat_whatever_the_order_and_lie_within_the_data(differences: list[float]) -> None:
    for bootstrap in (percentile_bootstrap, bca_bootstrap):
        found = bootstrap(differences)
        assert found is not None
        assert min(differences) - 1e-9 <= found[0] < found[1] <= max(differences) + 1e-9
        assert bootstrap(differences[::-1]) == found
        shifted = bootstrap([16.0 + value for value in differences])
        assert shifted == pytest.approx((16.0 + found[0], 16.0 + found[1]), abs=1e-9)


def test_bootstrap_intervals_are_scipys() -> None:
    # Sorted values between 0 and 1 are taken as they are.
    values = np.array([0.0, 0.2, 0.3, 0.7, 1.0])
    for method, bootstrap in (("percentile", percentile_bootstrap), ("BCa", bca_bootstrap)):
        generator = np.random.default_rng(0)
        expected = stats.bootstrap((values,), np.mean, method=method, rng=generator).confidence_interval
        assert bootstrap(list(values)) == (expected.low, expected.high)


@pytest.mark.parametrize("spread", [1e-80, 2.0**-52, 1e80])
def test_no_size_of_spread_makes_a_bootstrap_interval_undefined(spread: float) -> None:
    offset = 1.0 if spread == 2.0**-52 else 0.0
    for bootstrap in (percentile_bootstrap, bca_bootstrap):
        found = bootstrap([offset, offset, offset + spread, offset, offset])
        assert found is not None
        assert offset <= found[0] <= found[1] <= offset + spread


def test_two_pairs_have_no_bootstrap_interval() -> None:
    assert percentile_bootstrap([1.0, 2.0]) is None
    assert bca_bootstrap([1.0, 2.0]) is None


def bootstrap_tails(studies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A row a study: the exact chance that the mean of a resample is at most 0, and that it is at least 0.

    A resample is how often it takes each pair; all such counts are listed with their multinomial probability.
    """
    pairs = studies.shape[1]
    resamples = itertools.combinations_with_replacement(range(pairs), pairs)
    counts = np.array([np.bincount(resample, minlength=pairs) for resample in resamples])
    chance = stats.multinomial.pmf(counts, pairs, np.full(pairs, 1 / pairs))
    sums = studies @ counts.T
    return (sums <= 0.0) @ chance, (sums >= 0.0) @ chance


# Measured over 40 000 studies each: 75.4, 83.9 and 88.8 %; at 8 pairs a tenth of them has to do here.
@pytest.mark.parametrize(("pairs", "taken", "documented"), [(3, 40_000, 75.4), (5, 40_000, 83.9), (8, 4000, 88.8)])
def test_simulated_coverage_is_the_documented_one(pairs: int, taken: int, documented: float) -> None:
    """Both intervals are meant to cover 95 %. One standard error: t 0.1 points; bootstrap 0.2, and 0.5 at 8 pairs."""
    studies = np.random.default_rng(pairs).standard_normal((40_000, pairs))
    half = stats.t.isf(0.025, pairs - 1) * studies.std(axis=1, ddof=1) / pairs**0.5
    assert 100 * (abs(studies.mean(axis=1)) <= half).mean() == pytest.approx(95.0, abs=0.4)
    # A percentile interval covers 0 where neither side of 0 has less than 2.5 % of the resampled means.
    below, above = bootstrap_tails(studies[:taken])
    assert 100 * (np.minimum(below, above) >= 0.025).mean() == pytest.approx(documented, abs=1.0)


@pytest.mark.parametrize(("pairs", "documented"), [(3, 72), (5, 85), (8, 88)])
def test_simulated_coverage_of_bca_is_the_documented_one(pairs: int, documented: float) -> None:
    """One standard error of 800 studies: 1.6 points at most."""
    studies = np.random.default_rng(100 + pairs).standard_normal((800, pairs))
    generator = np.random.default_rng(0)
    found = stats.bootstrap((studies,), np.mean, axis=1, n_resamples=499, method="BCa", batch=100, rng=generator)
    low, high = found.confidence_interval
    assert 100 * ((low <= 0.0) & (high >= 0.0)).mean() == pytest.approx(documented, abs=5.0)


def test_the_simulated_bootstrap_is_the_one_that_is_reported() -> None:
    studies = np.random.default_rng(4).standard_normal((100, 5)) + 0.8
    tail = np.minimum(*bootstrap_tails(studies))
    clear = abs(tail - 0.025) > 0.006
    covers = [low <= 0.0 <= high for low, high in map(percentile_bootstrap, studies[clear].tolist())]
    assert covers == (tail[clear] > 0.025).tolist()
    assert 0 < sum(covers) < len(covers)


def test_arms_that_never_differ_are_identical_and_nothing_else_is() -> None:
    assert identical([0.0, -0.0, 0.0])
    assert not identical([0.0, 1e-16, 0.0])
    assert not identical([0.5, 0.5])


# The sum of ten times 0.1, and with it a naive mean and deviation, rounds.
@pytest.mark.parametrize("value", [0.0, 0.1, -7.3])
@pytest.mark.parametrize("pairs", [2, 3, 10])
def test_equal_differences_have_a_mean_and_no_spread_and_no_test(value: float, pairs: int) -> None:
    differences = [value] * pairs
    summary = paired(differences)
    assert (summary.mean, summary.sd, summary.low, summary.high) == (value, 0.0, value, value)
    assert summary.t_p is None
    assert summary.sign_flip_p == (1.0 if value == 0.0 else 2 / 2**pairs)
    found = equivalence(differences, 10.0)
    assert (found.p, found.low, found.high, found.equivalent) == (None, value, value, False)
    assert percentile_bootstrap(differences) is None
    assert bca_bootstrap(differences) is None


def test_differences_that_differ_in_the_last_digit_are_still_tested() -> None:
    found = t_p([1.0, 1.0, 1.0 + 2.0**-52])
    assert found is not None
    assert 0.0 <= found < 1e-20


def test_forty_equal_signs_give_the_smallest_possible_p() -> None:
    assert sign_flip_p([0.1] * 40) == 2 / 2**40


def test_differences_are_taken_at_common_seeds_only() -> None:
    assert paired_differences({3: 2.5, 1: 2.0, 7: 9.0}, {1: 1.0, 2: 4.0, 3: 3.0}) == {1: 1.0, 3: -0.5}


def test_too_few_too_many_or_non_finite_values_are_refused() -> None:
    with pytest.raises(ArgumentError, match="at least 2"):
        standard_deviation([1.0])
    with pytest.raises(ArgumentError, match="at least 1"):
        mean([])
    with pytest.raises(ArgumentError, match="not finite"):
        paired([1.0, math.nan])
    with pytest.raises(ArgumentError, match="at most 40"):
        sign_flip_p([1.0] * 41)
    with pytest.raises(ArgumentError, match="level"):
        t_interval([1.0, 2.0], 1.0)
    with pytest.raises(ArgumentError, match="level"):
        equivalence([1.0, 2.0], 1.0, 0.5)
    with pytest.raises(ArgumentError, match="margin must be a positive number"):
        equivalence([1.0, 2.0], 0.0)
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        holm([0.5, math.nan])
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        holm([1.5])
    with pytest.raises(ArgumentError, match="level"):
        percentile_bootstrap([1.0, 2.0, 4.0], 0.0)
    with pytest.raises(ArgumentError, match="at least 2"):
        bca_bootstrap([1.0])
    with pytest.raises(ArgumentError, match="its square is lost"):
        paired([1.0, 1e-200])
