"""Sources in half precision, read by native: rounded once, and copied never."""

from collections.abc import Sequence

import pytest
import torch
from reads import EPS, HALVES, leaves
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from depthroute.errors import ArgumentError
from depthroute.ops import Attended, attend, native


def assert_rounded_once(
    queries: torch.Tensor,
    keys: Sequence[torch.Tensor] | None,
    values: Sequence[torch.Tensor],
    prior: torch.Tensor | None = None,
    before: Attended | None = None,
    gain: torch.Tensor | None = None,
) -> None:
    """What native reads, and the gradient of every argument, is the specification's in fp64, rounded once."""
    given = (queries, keys, values, prior, before, gain)
    exact = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().double().requires_grad_(), given)
    ours, theirs = (
        attend(*most, eps=EPS, gain=last, impl=impl)
        for impl, (*most, last) in {"native": given, "reference": exact}.items()
    )
    inputs, twins = ([one for one in tree_leaves(tree) if one is not None] for tree in (given, exact))
    upstream = [torch.arange(one.numel()).view_as(one).sin().to(one.dtype) for one in ours]
    found = torch.autograd.grad(ours, inputs, upstream)
    expected = torch.autograd.grad(theirs, twins, [one.double() for one in upstream])
    half = values[0].dtype
    assert (ours.mixed.dtype, ours.lse.dtype) == (half, torch.float32)
    assert [one.dtype for one in found] == [one.dtype for one in inputs]
    for one, other in zip((*ours, *found), (*theirs, *expected), strict=True):
        # Half the distance between two halves; and what fp32 inside leaves of the largest.
        rtol = 0.5 * torch.finfo(half).eps if one.dtype == half else 0.0
        assert_close(one.double(), other, rtol=rtol, atol=5e-6 * max(1.0, other.abs().max().item()))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("rank", [71, 5, "separate"])
@pytest.mark.parametrize("goes_on", [False, True], ids=["alone", "after another read"])
def test_native_rounds_halves_once_forward_and_in_every_gradient(dtype, rank, goes_on):
    rank, keyed = (9, True) if rank == "separate" else (rank, False)
    queries, gain, prior, lse = leaves((3, rank), (rank,), (4,), (3, 2, 7), dtype=torch.float32)
    mixed, *rest = leaves((3, 2, 7, 71), *[(2, 7, 71)] * 4, *[(2, 7, rank)] * 4, seed=1, dtype=dtype)
    before = Attended(mixed, lse) if goes_on else None
    assert_rounded_once(queries, rest[4:] if keyed else None, rest[:4], prior, before, gain)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", [1, 3, 31, 64, 100, 129])
def test_no_width_of_halves_is_special_to_native(width, dtype):
    (queries,), values = leaves((5, width), dtype=torch.float32), leaves(*[(4, width)] * 3, seed=1, dtype=dtype)
    assert_rounded_once(queries, None, values)


@pytest.mark.parametrize("dtype", HALVES)
def test_native_reads_halves_where_they_lie(dtype):
    (queries,), (wide,) = leaves((2, 6), dtype=torch.float32), leaves((20, 27), seed=1, dtype=dtype)
    apart = [wide[:, :11], wide[:, 11:22]]
    assert [native.rows(value).data_ptr() for value in apart] == [value.data_ptr() for value in apart]
    assert_rounded_once(queries, None, apart)
    # Keys that begin where the tail of their value does, but whose rows lie elsewhere.
    assert_rounded_once(queries, [wide[:10, 5:11], wide[:10, 16:22]], [wide[::2, :11], wide[::2, 11:22]])


class Operators(TorchDispatchMode):
    """Names of the operators that torch is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", HALVES)
def test_native_copies_no_half_forward_or_backward(dtype):
    (queries,), values = leaves((2, 8), dtype=torch.float32), leaves(*[(5, 8)] * 3, seed=1, dtype=dtype)
    mixed = torch.zeros(2, 5, 8, dtype=dtype, requires_grad=True)
    before = Attended(mixed, torch.zeros(2, 5))
    seen = {}
    for impl in ("native", "reference"):
        with Operators() as operators:
            read = attend(queries, None, values, None, before, eps=EPS, impl=impl)
            torch.autograd.grad(read.mixed, [queries, mixed, *values], torch.ones_like(read.mixed))
        seen[impl] = operators.names & {"_to_copy", "clone", "copy_", "cat", "stack"}
    assert seen["native"] == set()
    assert "_to_copy" in seen["reference"]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", [4, 128])
def test_every_half_is_widened_and_rounded_as_torch_does(width, dtype):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype).view(-1, width)
    finest, largest = torch.finfo(dtype).eps, torch.finfo(dtype).max
    # Sums with a neighbour are ties, or overflow; half the last bit of the largest is the least that takes it there.
    others = [every.flatten().roll(1).view_as(every), torch.full_like(every, largest * finest / (4 - 2 * finest))]
    key, value = torch.ones(len(every), 1, dtype=dtype), every.clone().requires_grad_()

    def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
        assert_close(found, expected, rtol=0, atol=0, equal_nan=True)

    read = attend(torch.zeros(2, 1), [key], [value], eps=0.0, impl="native")
    assert_same(read.mixed, torch.stack([every, every]))
    for other in others:
        upstream = torch.stack([every, other])
        (gradient,) = torch.autograd.grad(read.mixed, value, upstream, retain_graph=True)
        assert_same(gradient, (every.float() + other.float()).to(dtype))
        both = attend(torch.zeros(1, 1), [key] * 2, [every, other], eps=0.0, impl="native")
        assert_same(both.mixed[0], (0.5 * every.float() + 0.5 * other.float()).to(dtype))


@pytest.mark.usefixtures("as_a_user")
def test_a_dtype_that_native_does_not_read_is_one_line():
    value = torch.zeros(3, 4).to(torch.float8_e5m2)
    with pytest.raises(ArgumentError, match=r"reads .*bfloat16.*; the values are torch.float8_e5m2; choose another"):
        attend(torch.zeros(1, 4), None, [value], eps=EPS, impl="native")
