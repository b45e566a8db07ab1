"""Paired statistics: published examples and the properties that any such summary must have."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthroute.errors import ArgumentError
from depthroute.study.statistics import mean, paired, paired_differences, sign_flip_p, standard_deviation, t_interval

VALUES = st.lists(st.integers(-1000, 1000).map(lambda n: n / 64), min_size=2, max_size=9)


@pytest.mark.parametrize(
    ("differences", "expected_mean", "expected_sd", "expected_interval"),
    [
        ((-0.0290, -0.0270, -0.0294, -0.0300, -0.0352), -0.0301, 0.0031, (-0.0339, -0.0263)),
        ((-0.0181, -0.0120, -0.0211, -0.0292, -0.0430), -0.0247, 0.0120, (-0.0396, -0.0098)),
    ],
)
def test_five_published_pairs_give_the_published_summary(
    differences: tuple[float, ...], expected_mean: float, expected_sd: float, expected_interval: tuple[float, float]
) -> None:
    summary = paired(differences)
    assert summary.pairs == 5
    assert summary.mean == pytest.approx(expected_mean, abs=6e-5)
    assert summary.sd == pytest.approx(expected_sd, abs=6e-5)
    # The published differences are themselves rounded to four digits.
    assert (summary.low, summary.high) == pytest.approx(expected_interval, abs=1e-4)
    assert summary.sign_flip_p == 0.0625


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
