"""One depth read: the numbers of the papers, the identities, and what it refuses."""

import math

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from depthroute.errors import ArgumentError
from depthroute.ops import Attended, attend, merge, resolve

LR_EPS = 2.0**-23
VALUES = [torch.tensor(row, dtype=torch.float64) for row in [(1, 2, 3, 4), (4, 3, 2, 1), (-1, 0, 1, 0)]]


def query(*coordinates: float) -> torch.Tensor:
    return torch.tensor([coordinates], dtype=torch.float64)


@st.composite
def reads(draw, at_least=1):
    """Random queries, values, priors of random sizes, in fp64."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    queries, width, tokens = draw(st.integers(1, 4)), draw(st.integers(1, 7)), draw(st.integers(1, 5))
    count = draw(st.integers(at_least, 6))
    rank = draw(st.integers(1, width))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return normal(queries, rank), [normal(2, tokens, width) for _ in range(count)], normal(count).tolist()


@pytest.mark.parametrize(
    ("queries", "prior", "expected"),
    [
        (query(0.5, -0.25, 0, 1), None, (1.824819, 2.182026, 2.539234, 2.757071)),
        (query(0.5, 1), None, (1.637512, 1.950194, 2.262875, 2.182092)),
        (query(0.5, -0.25, 0, 1), [0.0, math.log(3), math.log(2)], (2.526342, 2.400268, 2.274193, 1.985348)),
    ],
    ids=["value keys", "sliced keys", "log-count prior"],
)
def test_the_worked_reads_come_out(queries, prior, expected):
    mixed = attend(queries, None, VALUES, prior, eps=LR_EPS).mixed[0]
    assert_close(mixed, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(reads())
def test_a_read_equals_the_oracle_forward_and_in_every_gradient(read):
    queries, values, prior = read
    gain = torch.linspace(0.5, 1.5, queries.shape[1], dtype=torch.float64)
    leaves = [queries, gain, *values]
    ours = [leaf.clone().requires_grad_() for leaf in leaves]
    theirs = [leaf.clone().requires_grad_() for leaf in leaves]
    mixed, lse = attend(ours[0], None, ours[2:], prior, eps=1e-6, gain=ours[1])
    rank = queries.shape[1]
    expected = [
        oracle.read_with_lse(row, [value[..., -rank:] for value in theirs[2:]], theirs[2:], prior, 1e-6, theirs[1])
        for row in theirs[0]
    ]
    expected_mixed = torch.stack([part[0] for part in expected])
    expected_lse = torch.stack([part[1] for part in expected])
    assert_close(mixed, expected_mixed)
    assert_close(lse, expected_lse)
    (mixed.sin().sum() + lse.cos().sum()).backward()
    (expected_mixed.sin().sum() + expected_lse.cos().sum()).backward()
    for mine, other in zip(ours, theirs, strict=True):
        assert_close(mine.grad, other.grad, rtol=1e-9, atol=1e-10)


@settings(max_examples=40, deadline=None)
@given(reads(), st.randoms(use_true_random=False))
def test_the_order_of_sources_does_not_matter(read, random):
    queries, values, prior = read
    order = list(range(len(values)))
    random.shuffle(order)
    straight = attend(queries, None, values, prior, eps=1e-6)
    shuffled = attend(queries, None, [values[i] for i in order], [prior[i] for i in order], eps=1e-6)
    assert_close(straight.mixed, shuffled.mixed)
    assert_close(straight.lse, shuffled.lse)


@settings(max_examples=40, deadline=None)
@given(reads(), st.floats(-50, 50))
def test_one_constant_on_all_priors_moves_lse_alone(read, constant):
    queries, values, prior = read
    plain = attend(queries, None, values, prior, eps=1e-6)
    moved = attend(queries, None, values, [p + constant for p in prior], eps=1e-6)
    assert_close(moved.mixed, plain.mixed, rtol=1e-9, atol=1e-9)
    assert_close(moved.lse, plain.lse + constant)


@settings(max_examples=60, deadline=None)
@given(reads(at_least=2), st.data())
def test_merging_any_split_of_the_sources_equals_reading_them_together_gradients_too(read, data):
    queries, values, prior = read
    cut = data.draw(st.integers(1, len(values) - 1))
    ours = [leaf.clone().requires_grad_() for leaf in (queries, *values)]
    theirs = [leaf.clone().requires_grad_() for leaf in (queries, *values)]
    together = attend(ours[0], None, ours[1:], prior, eps=1e-6)
    first = attend(theirs[0], None, theirs[1 : cut + 1], prior[:cut], eps=1e-6)
    second = attend(theirs[0], None, theirs[cut + 1 :], prior[cut:], eps=1e-6)
    joined = merge(first, second)
    assert_close(joined.mixed, together.mixed)
    assert_close(joined.lse, together.lse)
    (together.mixed.sin().sum() + together.lse.cos().sum()).backward()
    (joined.mixed.sin().sum() + joined.lse.cos().sum()).backward()
    for mine, other in zip(ours, theirs, strict=True):
        assert_close(mine.grad, other.grad, rtol=1e-9, atol=1e-10)


@settings(max_examples=30, deadline=None)
@given(reads())
def test_a_zero_query_reads_the_mean_of_the_sources(read):
    queries, values, _ = read
    mixed = attend(torch.zeros_like(queries), None, values, eps=1e-6).mixed
    assert_close(mixed, torch.stack(values).mean(0).expand_as(mixed))


def test_with_one_source_the_read_is_the_source_and_the_query_has_no_gradient():
    queries, value = torch.randn(2, 4).requires_grad_(), torch.randn(3, 4)
    mixed = attend(queries, None, [value], eps=1e-6).mixed
    mixed.square().sum().backward()
    assert torch.equal(mixed, value.expand(2, 3, 4))
    assert torch.equal(queries.grad, torch.zeros(2, 4))


def test_a_read_at_a_token_depends_on_that_token_alone():
    values = [torch.randn(5, 4) for _ in range(3)]
    queries = torch.randn(1, 4)
    before = attend(queries, None, values, eps=1e-6).mixed
    values[1][2] += 1.0
    after = attend(queries, None, values, eps=1e-6).mixed
    changed = (before != after).any(-1)[0]
    assert changed.tolist() == [False, False, True, False, False]


def test_explicit_keys_that_are_the_values_tail_equal_the_slice():
    values = [torch.randn(5, 6) for _ in range(3)]
    queries = torch.randn(2, 4)
    assert torch.equal(
        attend(queries, None, values, eps=1e-6).mixed,
        attend(queries, [value[:, 2:] for value in values], values, eps=1e-6).mixed,
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "under autocast"])
def test_reads_compute_in_fp32_inside_and_cast_once(dtype, autocast):
    values = [torch.randn(5, 64).to(dtype) for _ in range(9)]
    queries = torch.randn(2, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        mixed, lse = attend(queries, None, values, eps=1e-6)
    exact = attend(queries.double(), None, [value.double() for value in values], eps=1e-6)
    assert mixed.dtype == dtype
    assert lse.dtype == torch.float32
    assert_close(lse.double(), exact.lse, rtol=1e-5, atol=1e-5)
    assert_close(mixed.double(), exact.mixed.to(dtype).double(), rtol=max(torch.finfo(dtype).eps, 1e-5), atol=1e-5)


GOOD = {"queries": torch.zeros(1, 4), "keys": None, "values": [torch.zeros(3, 4)] * 2, "prior": None, "eps": 1e-6}


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": []}, "values: there is no source"),
        ({"values": [torch.zeros(3, 4), torch.zeros(2, 4)]}, r"values\[1\]: shape \[2, 4\]"),
        ({"values": [torch.zeros(3, 4), torch.zeros(3, 4, dtype=torch.float64)]}, r"values\[1\]: dtype torch.float64"),
        ({"values": [torch.zeros(3, 4), torch.zeros(3, 4, device="meta")]}, r"values\[1\]: on meta"),
        ({"values": [torch.zeros(3, 4, dtype=torch.int64)]}, "cannot be read"),
        ({"queries": torch.zeros(1, 5)}, "rank 5 must lie between 1 and the width of the values, 4"),
        ({"queries": torch.zeros(0, 4)}, "give one row a query"),
        ({"queries": torch.zeros(1, 4, device="meta")}, "queries: on meta"),
        ({"keys": [torch.zeros(3, 4)]}, "1 keys for 2 values"),
        ({"keys": [torch.zeros(3, 2)] * 2}, r"keys: shape \[3, 2\]"),
        ({"prior": [0.0]}, "prior: 1 numbers for 2 sources"),
        ({"eps": math.nan}, "eps: nan must be finite"),
        ({"eps": math.inf}, "eps: inf must be finite"),
        ({"eps": -1e-6}, "eps: -1e-06 must be finite and not negative"),
        ({"gain": torch.ones(3)}, r"gain: shape \[3\]"),
        ({"impl": "tritn"}, r"impl: 'tritn' is not available"),
        ({"values": torch.zeros(2, 3, 4)}, r"values: one tensor of shape \[2, 3, 4\]; give a sequence"),
        ({"keys": torch.zeros(2, 3, 4)}, r"keys: one tensor of shape \[2, 3, 4\]; give a sequence"),
        ({"values": [torch.zeros(())]}, r"values\[0\]: has no width"),
        ({"keys": [torch.zeros(3, 4, dtype=torch.bfloat16)] * 2}, "keys: dtype torch.bfloat16, but the values have"),
        ({"queries": torch.zeros(1, 4, dtype=torch.float64)}, "queries: fp64, but the values have torch.float32"),
        ({"gain": torch.ones(4, dtype=torch.float64)}, "gain: fp64"),
        ({"prior": torch.zeros(())}, r"prior: shape \[\]; give one number a source, \[2\]"),
        ({"prior": torch.zeros(2, 2)}, r"prior: shape \[2, 2\]"),
        ({"prior": [0.0, math.nan]}, "or -inf to hide its source"),
        ({"prior": [0.0, math.inf]}, "or -inf to hide its source"),
        ({"prior": [-math.inf, -math.inf]}, "prior: -inf hides every source; show at least one"),
    ],
)
def test_what_cannot_be_read_is_one_line_that_names_the_argument(change, message):
    with pytest.raises(ArgumentError, match=message) as raised:
        attend(**(GOOD | change))
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("as_a_user")
def test_reads_that_do_not_belong_together_are_not_merged():
    first = attend(torch.zeros(1, 4), None, [torch.zeros(3, 4)], eps=1e-6)
    other = attend(torch.zeros(2, 4), None, [torch.zeros(3, 4)], eps=1e-6)
    with pytest.raises(ArgumentError, match=r"mixed\[1\]: shape"):
        merge(first, other)
    with pytest.raises(ArgumentError, match="lse: shape"):
        merge(Attended(first.mixed, other.lse), Attended(first.mixed, other.lse))
    rough = Attended(first.mixed, first.lse.bfloat16())
    with pytest.raises(ArgumentError, match=r"lse: dtype torch.bfloat16 is too coarse"):
        merge(rough, rough)
    elsewhere = Attended(first.mixed, first.lse.to("meta"))
    with pytest.raises(ArgumentError, match="lse: on meta"):
        merge(elsewhere, elsewhere)


def test_with_a_source_hidden_the_others_are_read_as_if_it_were_absent():
    values = [torch.randn(3, 4, dtype=torch.float64) for _ in range(3)]
    queries = torch.randn(2, 4, dtype=torch.float64)
    hidden = attend(queries, None, values, [0.0, -math.inf, 0.0], eps=1e-6)
    absent = attend(queries, None, [values[0], values[2]], eps=1e-6)
    assert_close(hidden, absent, rtol=1e-14, atol=1e-14)


def test_auto_stands_for_what_was_measured_to_be_fastest_on_the_device(monkeypatch):
    assert resolve("auto") == "native"
    assert resolve("auto", torch.device("cuda")) == "compiled"
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert resolve("auto") == "reference"


@pytest.mark.parametrize("rank", [64, 16], ids=["value keys", "sliced keys"])
def test_backward_keeps_references_to_fp32_sources_and_numbers_a_token(rank):
    values = [torch.randn(32, 64, requires_grad=True) for _ in range(9)]
    queries = torch.randn(2, rank, requires_grad=True)
    saved = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        attend(queries, None, values, eps=1e-6, impl="reference")
    references = {tensor.untyped_storage().data_ptr() for tensor in (*values, queries)}
    assert references <= saved.keys()
    a_source = values[0].untyped_storage().nbytes()
    assert all(size < a_source for storage, size in saved.items() if storage not in references)
    # A logit's two factors and its weight, for each query and source at each token.
    assert sum(size for storage, size in saved.items() if storage not in references) <= 4 * 2 * 9 * 32 * 4
