"""Each measure against its definition, at values that are known."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from depthroute.probe import measures

ONE_HOT = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
EVEN = torch.full((1, 3), 1 / 3, dtype=torch.float64)


def test_one_source_alone_is_one_effective_source_and_even_weights_are_all_of_them():
    assert measures.entropy(ONE_HOT).item() == 0
    assert measures.effective_squares(ONE_HOT).item() == 1
    assert measures.entropy(EVEN).exp().item() == pytest.approx(3, abs=1e-14)
    assert measures.effective_squares(EVEN).item() == pytest.approx(3, abs=1e-14)


def test_routes_without_a_common_source_diverge_by_log_2_and_equal_ones_by_nothing():
    other = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    assert measures.jensen_shannon(ONE_HOT, other).item() == pytest.approx(math.log(2), abs=1e-15)
    assert measures.jensen_shannon(EVEN, EVEN).item() == 0


@settings(deadline=None)
@given(st.integers(2, 9), st.integers(0, 2**32 - 1))
def test_the_divergence_is_symmetric_and_between_0_and_log_2(sources, seed):
    first, second = torch.randn(2, sources, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).softmax(
        1
    )
    divergence = measures.jensen_shannon(first, second).item()
    assert -1e-15 <= divergence <= math.log(2)
    assert divergence == pytest.approx(measures.jensen_shannon(second, first).item(), abs=1e-15)


def test_weights_that_are_the_same_at_every_token_depend_on_none_and_those_that_average_out_on_nothing_else():
    def dependence(weights):
        return measures.token_dependence(weights.mean(0, keepdim=True), weights.square().mean(0, keepdim=True))[0]

    assert dependence(torch.tensor([[0.7, 0.3], [0.7, 0.3]], dtype=torch.float64)) == pytest.approx(0, abs=1e-12)
    assert dependence(torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)) == 1
    assert dependence(torch.tensor([[0.5, 0.5], [0.5, 0.5]], dtype=torch.float64)) is None
    # A variance of 0.04 a source beside a lasting preference of 0.2 a source: 0.08 of 0.16.
    assert dependence(torch.tensor([[0.9, 0.1], [0.5, 0.5]], dtype=torch.float64)) == pytest.approx(0.5)


def test_participation_counts_the_coordinates_that_a_query_uses():
    queries = torch.tensor([[3.0, 0, 0, 0], [2.0, 2, 2, 2], [0.0, 0, 0, 0]], dtype=torch.float64)
    assert measures.participation(queries) == [1, 4, None]


@settings(deadline=None)
@given(arrays.arrays(np.float64, st.integers(2, 12), elements=st.floats(-5, 5)), st.integers(1, 9))
def test_with_documents_of_one_length_the_interval_is_the_t_interval_of_their_means(means, length):
    found = measures.over_documents(means * length, np.full(len(means), length))
    assert found.mean == pytest.approx(means.mean(), abs=1e-12)
    half = scipy.stats.t.ppf(0.975, len(means) - 1) * means.std(ddof=1) / math.sqrt(len(means))
    assert (found.low, found.high) == pytest.approx((means.mean() - half, means.mean() + half), abs=1e-9)


def test_a_long_document_counts_for_its_tokens_and_absent_ones_for_nothing():
    found = measures.over_documents(np.array([3.0, 0.0, 1.0]), np.array([3, 0, 1]))
    assert found == (1.0, 1.0, 1.0)
    uneven = measures.over_documents(np.array([30.0, 0.0]), np.array([10, 2]))
    assert uneven.mean == 2.5
    # Residuals 30 - 25 and 0 - 5: sqrt(2 / 1 * 50) / 12.
    assert uneven.high - uneven.mean == pytest.approx(scipy.stats.t.ppf(0.975, 1) * 10 / 12)


def test_one_document_has_a_mean_and_no_interval():
    assert measures.over_documents(np.array([4.0]), np.array([2])) == (2.0, None, None)


def test_the_interval_holds_the_mean_of_the_population_in_95_of_100_draws():
    draw = np.random.default_rng(0)
    held = 0
    for _ in range(2000):
        counts = draw.integers(50, 400, 30)
        sums = counts * draw.normal(1.0, 0.3, 30)
        found = measures.over_documents(sums, counts)
        held += found.low <= 1.0 <= found.high
    assert 0.93 < held / 2000 < 0.965
