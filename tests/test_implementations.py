"""Every implementation of a read against the specification, and what each promises besides."""

import itertools
import shutil
from pathlib import Path

import pytest
import torch
from reads import EPS, HALVES, leaves, results
from torch.testing import assert_close

from depthroute import ops
from depthroute.errors import ArgumentError
from depthroute.ops import Attended, attend, building, merge, native

FAST = ["native", "compiled"]


@pytest.fixture(autouse=True)
def traceable(as_a_user):
    """The compiler cannot trace the tests' shape checks."""


@pytest.mark.parametrize(
    ("keyed", "gain", "prior", "before"), list(itertools.product([False, True], repeat=4)), ids=lambda on: str(int(on))
)
@pytest.mark.parametrize("impl", FAST)
def test_a_read_equals_the_specification_forward_and_in_every_gradient(impl, keyed, gain, prior, before):
    queries, gains, priors, *rest = leaves((3, 5), (5,), (4,), *[(2, 7, 70)] * 6, *[(2, 7, 5)] * 6)
    values, keys = rest[:6], rest[6:] if keyed else None
    inputs = [queries, *values, *(keys or ()), *([gains] if gain else ()), *([priors] if prior else ())]

    def read(name: str) -> Attended:
        options = {"eps": EPS, "gain": gains if gain else None}
        more = (priors if prior else None), None
        if not before:
            four = None if keys is None else keys[:4]
            unread = sum(tensor.sum() for tensor in (*values[4:], *(keys or ())[4:])) * 0
            whole = attend(queries, four, values[:4], *more, **options, impl=name)
            return Attended(whole.mixed + unread, whole.lse)
        first = attend(queries, None if keys is None else keys[4:], values[4:], **options, impl="reference")
        more = more[0], first
        return attend(queries, None if keys is None else keys[:4], values[:4], *more, **options, impl=name)

    for ours, theirs in zip(results(read(impl), inputs), results(read("reference"), inputs), strict=True):
        assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("sources", [1, 2, 3, 9, 49])
def test_any_number_of_sources_is_read(impl, sources):
    queries, *values = leaves((2, 6), *[(3, 6)] * sources)
    inputs = [queries, *values]
    ours = results(attend(queries, None, values, eps=EPS, impl=impl), inputs)
    theirs = results(attend(queries, None, values, eps=EPS, impl="reference"), inputs)
    assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("impl", ["reference", *FAST])
def test_of_one_source_the_gradient_of_the_query_is_exactly_zero(impl):
    queries, value = leaves((2, 33), (5, 33), dtype=torch.float32)
    read = attend(queries, None, [value], eps=EPS, impl=impl)
    assert torch.equal(read.mixed, value.expand(2, 5, 33))
    (gradient,) = torch.autograd.grad((read.mixed * torch.randn(2, 5, 33)).sum(), queries)
    assert torch.count_nonzero(gradient) == 0


@pytest.mark.parametrize("impl", ["reference", *FAST])
def test_a_prior_whose_tensor_hides_every_source_gives_nan_in_every_mixture(impl):
    queries, *values = leaves((2, 5), *[(3, 5)] * 2)
    assert attend(queries, None, values, torch.full((2,), -torch.inf), eps=EPS, impl=impl).mixed.isnan().all()


@pytest.mark.parametrize("width", [1, 3, 31, 64, 100, 129])
def test_no_width_is_special_to_native(width):
    queries, *values = leaves((5, width), *[(4, width)] * 3)
    inputs = [queries, *values]
    ours = results(attend(queries, None, values, eps=EPS, impl="native"), inputs)
    assert_close(
        ours, results(attend(queries, None, values, eps=EPS, impl="reference"), inputs), rtol=1e-11, atol=1e-11
    )


def test_without_gradients_a_native_read_has_the_same_bits_and_no_autograd(monkeypatch):
    values = [torch.randn(2, 3, 8) for _ in range(4)]
    queries = torch.randn(2, 8, requires_grad=True)
    with_gradients = attend(queries, None, values, eps=EPS, impl="native")
    monkeypatch.setattr(native, "NativeRead", None)
    with torch.no_grad():
        without = attend(queries, None, values, eps=EPS, impl="native")
    assert torch.equal(without.mixed, with_gradients.mixed)
    assert torch.equal(without.lse, with_gradients.lse)


@pytest.mark.parametrize("impl", FAST)
def test_with_a_source_hidden_results_and_gradients_are_as_without_it_and_its_own_gradient_is_zero(impl):
    queries, *values = leaves((2, 5), *[(3, 5)] * 3)
    prior = torch.tensor([0.0, -torch.inf, 0.0], dtype=torch.float64)
    hidden = results(attend(queries, None, values, prior, eps=EPS, impl=impl), [queries, *values])
    shown = attend(queries, None, values[::2], eps=EPS, impl=impl)
    of_hidden = hidden.pop(4)
    assert torch.count_nonzero(of_hidden) == 0
    assert_close(hidden, results(shown, [queries, *values[::2]]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("impl", FAST)
def test_a_second_derivative_is_refused(impl):
    queries, *values = leaves((1, 5), *[(3, 5)] * 2)
    mixed = attend(queries, None, values, eps=EPS, impl=impl).mixed
    (gradient,) = torch.autograd.grad(mixed.square().sum(), queries, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("impl", FAST)
def test_priors_and_queries_may_lie_apart_in_memory(impl):
    wide, priors, *values = leaves((2, 10), (6,), *[(3, 5)] * 3)
    inputs = [wide, priors, *values]
    ours, theirs = (
        results(attend(wide[:, ::2], None, values, priors[::2], eps=EPS, impl=name), inputs)
        for name in (impl, "reference")
    )
    assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def test_native_reads_rows_where_they_lie():
    queries, wide = leaves((1, 6), (4, 5, 16))
    sliced = [wide[..., :8], wide[..., 8:]]
    assert native.rows(sliced[0]).data_ptr() == wide.data_ptr()
    for strange in (sliced, [wide.transpose(0, 1)[..., :8]] * 2, [wide.movedim(-1, 0)[..., :5, :]] * 2):
        rank = min(6, strange[0].shape[-1])
        ours = results(attend(queries[:, :rank], None, strange, eps=EPS, impl="native"), [queries, wide])
        theirs = results(attend(queries[:, :rank], None, strange, eps=EPS, impl="reference"), [queries, wide])
        assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_native_gradients_repeat_to_the_bit_with_any_number_of_threads(dtype):
    queries, *values = leaves((3, 40), *[(100, 40)] * 5, dtype=dtype)
    found = []
    for threads in (1, 2, 2, 5):
        torch.set_num_threads(threads)
        found.append(results(attend(queries, None, values, eps=EPS, impl="native"), [queries, *values]))
    torch.set_num_threads(1)
    assert all(torch.equal(x, y) for other in found[1:] for x, y in zip(found[0], other, strict=True))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("impl", FAST)
def test_half_precision_is_computed_in_fp32_and_cast_once(impl, dtype):
    queries, *values = leaves((2, 16), *[(7, 16)] * 4, dtype=dtype)
    ours = attend(queries.float(), None, values, eps=EPS, impl=impl)
    theirs = attend(queries.float(), None, [value.float() for value in values], eps=EPS, impl="reference")
    assert ours.mixed.dtype == dtype
    assert ours.lse.dtype == torch.float32
    assert_close(ours.lse, theirs.lse)
    assert_close(ours.mixed, theirs.mixed.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("impl", FAST)
def test_merging_equals_the_specification(impl):
    inputs = leaves((2, 5, 8), (2, 5), (2, 5, 8), (2, 5))
    first, second = Attended(*inputs[:2]), Attended(*inputs[2:])
    ours = results(merge(first, second, impl=impl), inputs)
    assert_close(ours, results(merge(first, second, impl="reference"), inputs), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("impl", "mixtures", "dtype"),
    [("compiled", 1, torch.float32), *(("native", 0, dtype) for dtype in (torch.float32, *HALVES))],
)
def test_backward_keeps_references_and_a_few_numbers_a_token(impl, mixtures, dtype):
    (queries,), values = leaves((1, 64), dtype=torch.float32), leaves(*[(32, 64)] * 49, seed=1, dtype=dtype)
    saved: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        read = attend(queries, None, values, eps=EPS, impl=impl)
    ours = sum(saved.values()) - sum(saved.pop(tensor.untyped_storage().data_ptr(), 0) for tensor in values)
    # A logit and a scale of every source at every token; the mixture is what the next layer keeps too.
    assert ours <= mixtures * read.mixed.nbytes + (2 * 49 + 3) * 32 * 4 + queries.nbytes


@pytest.mark.parametrize("impl", ["reference", *FAST])
def test_a_counter_shows_which_implementation_ran(impl):
    queries, value = leaves((1, 4), (3, 4))
    before = ops.calls.copy()
    read = attend(queries, None, [value], eps=EPS, impl=impl)
    merge(read, read, impl=impl)
    assert ops.calls - before == {impl: 2}


@pytest.mark.parametrize(("dtype", "inside"), [(torch.float64,) * 2, *((half, torch.float32) for half in HALVES)])
def test_native_is_one_operator_to_the_compiler(dtype, inside):
    queries, prior, lse = leaves((2, 5), (3,), (2, 4), dtype=inside)
    mixed, *values = leaves((2, 4, 9), *[(4, 9)] * 3, seed=1, dtype=dtype)
    torch.library.opcheck(native.read_op, (3, EPS, queries, prior, mixed, lse, values))
    whole = torch.compile(lambda: attend(queries, None, values, prior, eps=EPS, impl="native"), fullgraph=True)
    inputs = [queries, prior, *values]
    eager = results(attend(queries, None, values, prior, eps=EPS, impl="native"), inputs)
    assert_close(results(whole(), inputs), eager)


@pytest.mark.parametrize("impl", ["reference", "native"])
def test_a_read_of_no_tokens_is_empty_and_its_gradient_zero(impl):
    (queries,), values = leaves((2, 4)), leaves((0, 4), (0, 4))
    mixed, lse = attend(queries, None, values, eps=EPS, impl=impl)
    assert (mixed.shape, lse.shape) == ((2, 0, 4), (2, 0))
    assert torch.equal(torch.autograd.grad(mixed.sum(), [queries])[0], torch.zeros_like(queries))


def test_without_a_compiler_native_says_what_it_needs(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    building.library.cache_clear()
    native.kernel.cache_clear()
    queries, value = leaves((1, 4), (3, 4))
    with pytest.raises(ArgumentError, match="needs a C\\+\\+ compiler, and there is no no-such-compiler"):
        attend(queries, None, [value], eps=EPS, impl="native")


def test_a_source_that_the_compiler_refuses_is_one_line(monkeypatch, tmp_path):
    broken = tmp_path / "native.cpp"
    broken.write_text("not C++")
    monkeypatch.setattr(building, "SOURCES", [broken])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    building.library.cache_clear()
    with pytest.raises(ArgumentError, match=r"'native' cannot be built: .*native.cpp:1:1") as caught:
        building.library()
    assert "\n" not in str(caught.value)
    building.library.cache_clear()


def test_what_was_built_is_found_again(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    building.library.cache_clear()
    building.library()
    (built,) = (tmp_path / "depthroute").iterdir()
    monkeypatch.setattr(building, "build", lambda *_: pytest.fail("built twice"))
    building.library.cache_clear()
    building.library()
    assert [built] == list((tmp_path / "depthroute").iterdir())


@pytest.mark.parametrize("part", building.SOURCES, ids=lambda path: path.name)
def test_what_was_built_of_another_source_is_not_used(monkeypatch, tmp_path, part):
    built = building.library()._name
    monkeypatch.setattr(building, "build", lambda _, path: shutil.copy(built, path))
    changed = tmp_path / "changed"
    changed.write_text(part.read_text() + "\n")
    monkeypatch.setattr(building, "SOURCES", [changed if path == part else path for path in building.SOURCES])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "depthroute").mkdir()
    building.library.cache_clear()
    assert Path(building.library()._name).name != Path(built).name
    building.library.cache_clear()
