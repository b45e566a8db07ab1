"""The kernels against the specification in fp64: forward and every gradient, on a CPU in Triton's interpreter.

Where there is a GPU the same tests run there, compiled. The interpreter takes milliseconds a program, so grids are tiny
and a program has two tokens instead of eight. All memory is NaN before a kernel writes it.
"""

import math

import pytest
import torch
from torch.nn.functional import rms_norm
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from depthroute.errors import ArgumentError
from depthroute.ops import attend, merge

pytest.importorskip("triton", reason="Triton is not installed (extra kernels)")

from kernel_reads import EPS, TOLERANCE, Case, close

from depthroute.ops import triton as implementation
from depthroute.ops import triton_operators as operators
from depthroute.ops.result import Attended


def test_memory_is_poisoned_in_these_tests(device):
    assert torch.empty(3, device=device).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rank": 5, "prior": True, "gain": True, "queries": 3},
        {"rank": 5, "own": True, "gain": True, "token": (1, 3)},
    ],
    ids=["value keys", "tail keys", "own keys"],
)
def test_forward_and_every_gradient_are_the_specifications(device, dtype, options):
    Case(device, dtype, **options).check()


@pytest.mark.parametrize("width", [1, 96, 640, 1000, 7168])
def test_a_width_need_not_be_a_power_of_two(device, width):
    Case(device, torch.float32, width=width, rank=width, token=(1,)).check()


def test_129_sources_are_read(device):
    Case(device, torch.float64, width=4, rank=4, sources=129, token=(1,), queries=1).check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_one_source_the_read_is_the_source_and_the_query_has_no_gradient(device, dtype):
    queries = torch.randn(2, 12, device=device, requires_grad=True)
    value = torch.randn(3, 12, device=device).to(dtype)
    mixed = attend(queries, None, [value], eps=EPS, impl="triton").mixed
    mixed.backward(torch.randn_like(mixed))
    assert torch.equal(mixed, value.expand(2, 3, 12))
    assert torch.equal(queries.grad, torch.zeros_like(queries))


def test_a_source_given_twice_gets_both_gradients(device):
    value, queries = torch.randn(2, 3, 8, device=device, dtype=torch.float64).unbind(0), torch.randn(1, 8).double()
    found = []
    for impl in ("triton", "reference"):
        one, other = (leaf.clone().requires_grad_() for leaf in value)
        mixed = attend(queries.to(device), None, [one, other, one], eps=EPS, impl=impl).mixed
        found.append(torch.autograd.grad(mixed.sin().sum(), [one, other]))
    assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)


def test_rows_of_a_wider_tensor_and_rows_off_their_alignment_are_read_in_place(device):
    wide = torch.randn(3, 20, device=device)
    odd = torch.randn(3 * 12 + 1, device=device)[1:].view(3, 12)
    repeated = torch.randn(1, 12, device=device).expand(3, 12)
    values, queries = [wide[:, :12], odd, repeated], torch.randn(2, 12, device=device)
    ours = attend(queries, None, values, eps=EPS, impl="triton")
    exact = attend(queries.double(), None, [value.double() for value in values], eps=EPS)
    close(ours.mixed, exact.mixed, 1e-5)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    "bent", [lambda value: value.mT, lambda value: value.transpose(0, 1), lambda value: value[:, :2]]
)
def test_sources_that_are_not_rows_at_equal_distances_are_refused(device, bent):
    value = bent(torch.randn(3, 3, 3, device=device))
    queries = torch.zeros(1, 3, device=device)
    with pytest.raises(ArgumentError, match=r"values\[1\]: its strides .* call .contiguous\(\) on it first") as raised:
        attend(queries, None, [value.contiguous(), value], eps=EPS, impl="triton")
    assert "\n" not in str(raised.value)


def test_a_gradient_that_is_not_contiguous_is_taken(device):
    case = Case(device, torch.float64)
    case.mixed_grad = torch.ones(1, 1, 1, dtype=torch.float64, device=device).expand_as(case.mixed_grad)
    case.check()


def test_hidden_sources_are_hidden_wherever_they_stand(device):
    values = [torch.randn(3, 8, device=device) for _ in range(4)]
    queries = torch.randn(2, 8, device=device)
    hidden = attend(queries, None, values, [-math.inf, 0.0, -math.inf, 1.0], eps=EPS, impl="triton")
    absent = attend(queries, None, values[1::2], [0.0, 1.0], eps=EPS, impl="triton")
    assert torch.equal(hidden.mixed, absent.mixed)
    assert torch.equal(hidden.lse, absent.lse)


def test_no_tokens_give_no_mixture_and_zero_gradients(device):
    queries = torch.randn(2, 8, device=device, requires_grad=True)
    mixed = attend(queries, None, [torch.randn(0, 8, device=device)] * 2, eps=EPS, impl="triton").mixed
    mixed.sum().backward()
    assert mixed.shape == (2, 0, 8)
    assert torch.equal(queries.grad, torch.zeros_like(queries))


def test_a_read_and_its_gradients_repeat_to_the_bit(device):
    case = Case(device, torch.float32, token=(7,), gain=True, prior=True)
    for first, second in zip(case.run("triton"), case.run("triton"), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_norm_that_follows_can_be_applied_on_the_way_out(device, dtype):
    def normed(*arguments, impl, **options):
        if impl == "triton":
            return implementation.attend_normed(*arguments, **options, norm_eps=0.1)
        mixed, lse = attend(*arguments, **options, impl=impl)
        return rms_norm(mixed, mixed.shape[-1:], eps=0.1), lse

    Case(device, dtype, rank=5).check(normed)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_merging_is_the_specifications_with_its_gradients(device, dtype):
    full = torch.float64 if dtype == torch.float64 else torch.float32
    leaves = [torch.randn(2, 3, 12, device=device).to(dtype) for _ in range(2)]
    leaves += [torch.randn(2, 3, device=device).to(full) for _ in range(2)]
    back = [torch.randn(2, 3, 12, device=device).to(dtype), torch.randn(2, 3, device=device)]
    found = []
    for impl, exact in (("triton", False), ("reference", True)):
        made = [leaf.to(torch.float64 if exact else leaf.dtype).requires_grad_() for leaf in leaves]
        joined = merge(Attended(made[0], made[2]), Attended(made[1], made[3]), impl=impl)
        grads = torch.autograd.grad(joined, made, [one.to(two.dtype) for one, two in zip(back, joined, strict=True)])
        found.append([*joined, *grads])
    for ours, exact in zip(*found, strict=True):
        close(ours, exact, max(TOLERANCE[dtype], TOLERANCE[ours.dtype]))


def test_merging_a_split_equals_reading_together_gradients_too(device):
    case = Case(device, torch.float64, sources=3)

    def in_two(queries, keys, values, prior, **options):
        if options["impl"] == "reference":
            return attend(queries, keys, values, prior, **options)
        parts = [attend(queries, None, some, None, **options) for some in (values[:1], values[1:])]
        return merge(*parts, impl="triton")

    case.check(in_two)


def test_a_read_whose_sources_are_all_hidden_adds_nothing(device):
    seen = Attended(torch.randn(1, 3, 8, device=device), torch.randn(1, 3, device=device))
    nothing = Attended(torch.randn(1, 3, 8, device=device), torch.full((1, 3), -math.inf, device=device))
    for joined in (merge(seen, nothing, impl="triton"), merge(nothing, seen, impl="triton")):
        assert torch.equal(joined.mixed, seen.mixed)
        assert torch.equal(joined.lse, seen.lse)


def small_loss(queries, values):
    read = attend(queries, None, values, eps=EPS, impl="triton")
    joined = merge(read, attend(queries, None, values[:1], eps=EPS, impl="triton"), impl="triton")
    return joined.mixed.sin().sum() + joined.lse.sum()


def leaves_of_a_small_loss(device):
    return torch.randn(9, 8, device=device, requires_grad=True), [
        torch.randn(2, 8, device=device, requires_grad=True) for _ in range(2)
    ]


@pytest.mark.usefixtures("as_a_user")
def test_the_operators_keep_the_rules_of_torch(device):
    queries, values = leaves_of_a_small_loss(device)
    torch.library.opcheck(operators.read, (queries, [], values, torch.zeros(2, device=device), EPS, None))
    keys = [value.detach()[:, :5].clone().requires_grad_() for value in values]
    torch.library.opcheck(operators.read, (queries[:, :5].detach().clone(), keys, values, None, EPS, 1e-5))
    joined = [torch.randn(2, 2, 8, device=device, requires_grad=True) for _ in range(2)]
    joined += [torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2)]
    torch.library.opcheck(operators.join, tuple(joined))


@pytest.mark.usefixtures("as_a_user")
def test_a_read_compiles_into_one_graph_and_gives_the_same_gradients(device):
    queries, values = leaves_of_a_small_loss(device)
    compiled = torch.compile(small_loss, fullgraph=True)
    ours = torch.autograd.grad(compiled(queries, values), [queries, *values])
    theirs = torch.autograd.grad(small_loss(queries, values), [queries, *values])
    assert_close(ours, theirs)


def test_activation_checkpointing_gives_the_same_bits(device):
    queries, values = leaves_of_a_small_loss(device)
    again = checkpoint(small_loss, queries, values, use_reentrant=False)
    ours = torch.autograd.grad(again, [queries, *values])
    theirs = torch.autograd.grad(small_loss(queries, values), [queries, *values])
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_backward_keeps_references_to_sources_and_numbers_a_token(device):
    values = [torch.randn(4, 64, device=device).bfloat16().requires_grad_() for _ in range(3)]
    queries = torch.randn(2, 64, device=device, requires_grad=True)
    kept = {}

    def note(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        mixed, _ = attend(queries, None, values, eps=EPS, impl="triton")
    references = {tensor.untyped_storage().data_ptr() for tensor in (*values, queries, mixed)}
    assert references <= kept.keys()
    # lse, a score a query and source, and a scale a source, of 4 bytes for each of 4 tokens.
    assert sum(size for place, size in kept.items() if place not in references) == 4 * 4 * (2 + 2 * 3 + 3)
