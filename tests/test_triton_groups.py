"""Any number of queries in one launch, and what the kernels touch between two loads of the same row of a source."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn.functional import rms_norm

from depthroute.ops import attend

pytest.importorskip("triton", reason="Triton is not installed (extra kernels)")

from kernel_reads import EPS, Case

from depthroute.ops import triton as implementation
from depthroute.ops import triton_operators as operators

KINDS = {
    "value keys": {},
    "tail keys and a prior": {"rank": 5, "prior": True, "gain": True},
    "own keys and a prior": {"rank": 5, "own": True, "prior": True, "gain": True},
}


def normed(*arguments, impl, **options):
    if impl == "triton":
        return implementation.attend_normed(*arguments, **options, norm_eps=0.1)
    mixed, lse = attend(*arguments, **options, impl=impl)
    return rms_norm(mixed, mixed.shape[-1:], eps=0.1), lse


@pytest.mark.parametrize("read", [attend, normed])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("queries", [1, 4, 5, 8, 9, 33])
def test_any_number_of_queries_is_read_as_specified_with_every_gradient(device, queries, kind, read):
    Case(device, torch.float64, queries=queries, **KINDS[kind]).check(read)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_groups_are_summed_in_full_precision_and_rounded_once(device, dtype, kind):
    Case(device, dtype, queries=33, **KINDS[kind]).check()


def test_groups_of_two_which_wide_sources_take_are_read_as_specified(device, monkeypatch):
    monkeypatch.setattr(operators, "ACCUMULATORS", 32)
    assert operators.tiles(12, 5, 5, own_keys=True).queries == 2
    Case(device, torch.float64, queries=5, rank=5, own=True).check()


def test_129_sources_are_read_by_several_groups(device):
    Case(device, torch.float64, width=4, rank=4, sources=129, token=(1,), queries=9).check()


def test_several_groups_repeat_to_the_bit(device):
    case = Case(device, torch.float32, token=(7,), queries=20, **KINDS["own keys and a prior"])
    for first, second in zip(case.run("triton"), case.run("triton"), strict=True):
        assert torch.equal(first, second)


def test_a_source_given_twice_gets_the_gradients_of_all_groups(device):
    values = [torch.randn(3, 8, device=device, dtype=torch.float64) for _ in range(2)]
    queries = torch.randn(20, 8, device=device, dtype=torch.float64)
    found = []
    for impl in ("triton", "reference"):
        one, other = (value.clone().requires_grad_() for value in values)
        mixed = attend(queries, None, [one, other, one], eps=EPS, impl=impl).mixed
        found.append(torch.autograd.grad(mixed.sin().sum(), [one, other]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)


def test_with_one_source_no_query_of_any_group_has_a_gradient(device):
    queries = torch.randn(20, 12, device=device, requires_grad=True)
    value = torch.randn(3, 12, device=device)
    mixed = attend(queries, None, [value], eps=EPS, impl="triton").mixed
    mixed.backward(torch.randn_like(mixed))
    assert torch.equal(mixed, value.expand(20, 3, 12))
    assert torch.equal(queries.grad, torch.zeros_like(queries))


class Launches:
    """A kernel that remembers the arguments of each launch, by name."""

    def __init__(self, kernel):
        self.kernel, self.seen = kernel, []

    def __getitem__(self, grid):
        def launch(*arguments, **constants):
            self.seen.append(dict(zip(self.kernel.arg_names, arguments, strict=False)))
            return self.kernel[grid](*arguments, **constants)

        return launch


@pytest.mark.parametrize(("queries", "several"), [(1, False), (4, False), (5, True), (33, True)])
def test_one_launch_forward_and_one_backward_whatever_the_number_of_queries(device, queries, several, monkeypatch):
    forward, backward, added = (
        Launches(getattr(operators.kernels, name)) for name in ("attend_kernel", "attend_backward_kernel", "sum_kernel")
    )
    monkeypatch.setattr(operators.kernels, "attend_kernel", forward)
    monkeypatch.setattr(operators.kernels, "attend_backward_kernel", backward)
    monkeypatch.setattr(operators.kernels, "sum_kernel", added)
    Case(device, torch.bfloat16, queries=queries, rank=5, own=True).run("triton")
    assert [len(kernel.seen) for kernel in (forward, backward, added)] == [1, 1, 1]
    sums = [backward.seen[0][name] for name in ("value_sums", "key_sums")]
    # Two programs, of two tokens and of one; three sources.
    expected = [(2, 3, 12), (2, 3, 5)] if several else [None, None]
    assert [None if one is None else tuple(one.shape) for one in sums] == expected


class Touched:
    """Bytes of memory that a kernel has loaded or stored, in order, and which of them are a row of a source."""

    def __init__(self, sources):
        self.sources = sources
        self.accesses: list[np.ndarray] = []
        self.rows: list[tuple[int, int, int]] = []
        """Access, source and token."""

    def note(self, pointers, mask, *, load):
        first = pointers.data[mask.data].astype(np.int64)
        size = pointers.get_element_ty().primitive_bitwidth // 8
        self.accesses.append((first[:, None] + np.arange(size)).ravel())
        for number, source in enumerate(self.sources):
            found = (first - source.data_ptr()) // (source.stride(0) * source.itemsize)
            here = (first >= source.data_ptr()) & (first < source.data_ptr() + source.nbytes)
            if here.any():
                assert load, "a source is written"
                assert here.all()
                (token,) = set(found.tolist())
                self.rows.append((len(self.accesses) - 1, number, token))

    def loads(self):
        """How often each row of each source was loaded: [source, token]."""
        count = np.zeros((len(self.sources), len(self.sources[0])), dtype=int)
        for _, number, token in self.rows:
            count[number, token] += 1
        return count

    def between(self) -> Iterator[tuple[set[int], int, int]]:
        """For each two successive loads of a row: tokens of the rows loaded from the first on, its own token, bytes."""
        for number, token in {(number, token) for _, number, token in self.rows}:
            times = [access for access, *row in self.rows if row == [number, token]]
            for first, again in pairwise(times):
                tokens = {there for access, _, there in self.rows if first <= access <= again}
                yield tokens, token, len(np.unique(np.concatenate(self.accesses[first:again])))


@pytest.fixture
def traced(device, monkeypatch) -> Callable:
    if device.type == "cuda":
        pytest.skip("loads are traced in the interpreter")
    from triton.runtime.interpreter import InterpreterBuilder

    def trace(sources, work):
        touched = Touched(sources)
        load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

        def noted_load(builder, pointers, mask, *rest, **named):
            touched.note(pointers, mask, load=True)
            return load(builder, pointers, mask, *rest, **named)

        def noted_store(builder, pointers, value, mask, *rest, **named):
            touched.note(pointers, mask, load=False)
            return store(builder, pointers, value, mask, *rest, **named)

        with monkeypatch.context() as patch:
            patch.setattr(InterpreterBuilder, "create_masked_load", noted_load)
            patch.setattr(InterpreterBuilder, "create_masked_store", noted_store)
            made = work()
        return touched, made

    return trace


@pytest.mark.parametrize(
    ("keys", "queries", "groups"),
    [("tail", 1, 1), ("tail", 8, 1), ("tail", 9, 2), ("tail", 24, 3), ("own", 4, 1), ("own", 5, 2), ("own", 12, 3)],
)
def test_a_row_is_loaded_once_a_group_and_only_its_token_is_touched_in_between(device, traced, keys, queries, groups):
    width, rank, sources, size, own = 64, 32, 3, 4, keys == "own"
    case = Case(
        device, torch.float32, width=width, rank=rank, queries=queries, sources=sources, own=own, token=(5,), prior=True
    )
    leaves = [case.leaves[0].requires_grad_(), case.leaves[2].requires_grad_(), *case.leaves[3:]]
    rows = [leaf.requires_grad_() for leaf in case.leaves[3:]]
    values, own_keys = rows[:sources], rows[sources:] or None

    forward, read = traced(rows, lambda: attend(leaves[0], own_keys, values, leaves[1], eps=EPS, impl="triton"))
    backward, _ = traced(
        rows, lambda: torch.autograd.grad((read.mixed, read.lse), leaves, (case.mixed_grad, case.lse_grad))
    )
    tile, row = (4, width + rank) if own else (8, width)
    # Of each source: a score and its gradient a query, for two groups, its scale, its prior, and four table entries.
    numbers = sources * (2 * tile * 2 * size + 2 * size + 4 * 16) + tile * 3 * size
    working_set = {
        # The rows; of a group the mixture, and the folded queries of the next one.
        forward: sources * row * size + tile * (width + rank) * size + numbers,
        # The rows, their sums, their gradients; the mixture, its gradient, two groups' folded queries, a sum for these.
        backward: sources * row * 3 * size + tile * (2 * width + 3 * rank) * size + numbers,
    }
    for touched, most in working_set.items():
        assert (touched.loads() == groups).all()
        found = list(touched.between())
        assert len(found) == len(rows) * 5 * (groups - 1)
        for tokens, token, bytes_between in found:
            assert tokens == {token}
            assert sources * row * size <= bytes_between <= most
