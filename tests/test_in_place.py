"""Reads and writes in place, one token a pass, from memory that stays: what the ordinary ones give, to the bit.

Only emitted keys agree to rounding under `native`, which sums their squares in an order of its own.
"""

import copy

import networks
import pytest
import torch
from networks import attnres
from reads import EPS, HALVES, leaves
from torch.nn.functional import rms_norm
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.testing import assert_close

from depthroute import ops
from depthroute.errors import ArgumentError
from depthroute.model.cache import KeyValueCache
from depthroute.model.transformer import Observer
from depthroute.ops import native_in_place
from depthroute.residuals.attnres.in_place import InPlace

ROUTES = [attnres({"blocks": 4}, routes=routes) for routes in networks.ROUTES]
KEYS = [attnres(sources, keys, "qk_v", gain=True) for sources in networks.SOURCES for keys in networks.KEYS]
SYSTEMS = [networks.ADDITIVE, *ROUTES, *KEYS, attnres({"blocks": 4}, beta=1.0), attnres({"blocks": 2}, alpha=0.5)]
EVERY = pytest.mark.parametrize("residual", SYSTEMS, ids=networks.describe)
BLOCKS = attnres({"blocks": 4}, {"subset": {"rank": 3, "seed": 5}}, "qk_v")
EMITTED = BLOCKS | {"keys": {"projected": 3}}
BOTH = pytest.mark.parametrize("residual", [BLOCKS, EMITTED], ids=networks.describe)


def assert_equal(found, expected, residual, impl="native"):
    if impl == "native" and residual.get("keys") == EMITTED["keys"]:
        few = 10 * torch.finfo(found.dtype).eps
        assert_close(found, expected, rtol=few, atol=few * expected.abs().max().item())
    else:
        assert torch.equal(found, expected)


def one_by_one(model, tokens, cache=None):
    cache = KeyValueCache(model.config.layers, tokens.shape[1]) if cache is None else cache
    return torch.cat([model(token, cache=cache) for token in tokens.split(1, dim=1)], dim=1)


def places(model, cache):
    """Who reads a token of this cache."""
    with torch.inference_mode():
        depth = cache.depth(model.residual, torch.zeros(2, 1, networks.WIDTH, dtype=torch.float64))
    assert isinstance(depth, InPlace)
    return depth


@EVERY
@pytest.mark.parametrize("impl", ["reference", "native"])
def test_reads_in_place_are_the_ordinary_reads(residual, impl):
    model, tokens = networks.moved(residual, computed={"impl": impl}), networks.tokens()
    before = ops.calls.copy()
    expected = one_by_one(model, tokens)
    ordinary = ops.calls - before
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            before = ops.calls.copy()
            assert_equal(one_by_one(model, tokens), expected, residual, impl)
            assert ops.calls - before == ordinary


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_they_are_in_every_dtype_and_under_autocast(residual, dtype):
    model, tokens = networks.moved(residual).to(dtype), networks.tokens()
    for autocast in (False, dtype != torch.float16):  # torch has no autocast of fp16 to bf16
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            expected = one_by_one(model, tokens)
            with torch.inference_mode():
                assert_equal(one_by_one(model, tokens), expected, residual)


def test_only_generation_reads_in_place():
    residual, cache = networks.moved(BLOCKS).residual, KeyValueCache(networks.LAYERS, 8)
    several, one = (torch.zeros(2, tokens, networks.WIDTH, dtype=torch.float64) for tokens in (3, 1))
    assert cache.depth(residual, one) is residual
    with torch.no_grad():
        assert cache.depth(residual, several) is residual
        assert isinstance(cache.depth(residual, one), InPlace)
        two_phases = networks.moved(BLOCKS, computed={"reads": "two_phase"})
        for other in (networks.moved(networks.ADDITIVE), networks.moved(attnres({"blocks": 4}, alpha=0.5)), two_phases):
            assert cache.depth(other.residual, one) is other.residual


@BOTH
def test_sources_keep_their_places_from_token_to_token(residual):
    model, tokens, cache = networks.moved(residual), networks.tokens(), KeyValueCache(networks.LAYERS, 5)
    with torch.inference_mode():
        model(tokens[:, :1], cache=cache)
        first = places(model, cache)
        addresses = [source.data_ptr() for source in (*first.values, *first.keys)]
        one_by_one(model, tokens[:, 1:], cache)
    assert places(model, cache) is first
    assert [source.data_ptr() for source in (*first.values, *first.keys)] == addresses


@BOTH
def test_a_copied_cache_goes_on_by_itself(residual):
    model, tokens = networks.moved(residual), networks.tokens()
    with torch.inference_mode():
        expected = one_by_one(model, tokens)
        cache = KeyValueCache(networks.LAYERS, 5)
        one_by_one(model, tokens[:, :3], cache)
        other = copy.deepcopy(cache)
        model(tokens[:, :1], cache=other)
        found = one_by_one(model, tokens[:, 3:], cache)
    assert places(model, other) is not places(model, cache)
    assert torch.equal(found, expected[:, 3:])


def test_one_cache_may_serve_more_sequences_or_another_model_in_between():
    tokens, cache = networks.tokens(), KeyValueCache(networks.LAYERS, 5)
    model = networks.moved(BLOCKS)
    with torch.inference_mode():
        expected = one_by_one(model, tokens)
        for residual in (model.residual, networks.moved(BLOCKS, seed=1).residual):
            for sequences in (2, 3):
                cache.depth(residual, torch.ones(sequences, 1, networks.WIDTH, dtype=torch.float64))
        assert torch.equal(one_by_one(model, tokens, cache), expected)


@pytest.mark.parametrize(
    "residual", [BLOCKS, EMITTED, attnres("full", gain=True), networks.ADDITIVE], ids=networks.describe
)
def test_parameters_may_change_from_one_token_to_the_next(residual):
    def found(mode):
        model, other = networks.moved(residual), networks.moved(residual, seed=1)
        cache = KeyValueCache(networks.LAYERS, 5)
        with mode():
            first = one_by_one(model, networks.tokens()[:, :2], cache)
            model.load_state_dict(other.state_dict())
            return torch.cat([first, one_by_one(model, networks.tokens()[:, 2:], cache)], dim=1)

    expected = found(torch.enable_grad)
    for mode in (torch.no_grad, torch.inference_mode):
        assert_equal(found(mode), expected, residual)


@BOTH
def test_hooks_are_told_and_obeyed_as_ever_and_may_keep_what_they_are_given(residual):
    def found(mode):
        model, kept, told = networks.moved(residual), [], []

        def note(module, given, *given_out):
            tensors = [*(tensor for part in given if isinstance(part, tuple) for tensor in part), *given[-1:]]
            kept.extend((one, one.clone()) for one in tensors if isinstance(one, torch.Tensor))
            told.append(type(module).__name__)

        model.norm.register_forward_pre_hook(note)
        model.layers[1].post_attention_layernorm.register_forward_hook(note)
        model.residual.reads["2"].register_forward_pre_hook(note)
        model.residual.reads["4"].register_forward_hook(lambda module, given, out: tuple(0 * one for one in out))
        with mode():
            logits = one_by_one(model, networks.tokens())
        assert all(torch.equal(one, its_copy) for one, its_copy in kept)
        return logits, told

    expected, told = found(torch.enable_grad)
    assert len(told) == 15
    for mode in (torch.no_grad, torch.inference_mode):
        logits, ours = found(mode)
        assert_equal(logits, expected, residual)
        assert ours == told


@BOTH
def test_a_query_may_be_replaced_from_one_token_to_the_next(residual):
    def found(mode):
        model, cache = networks.moved(residual), KeyValueCache(networks.LAYERS, 5)
        with mode():
            first = one_by_one(model, networks.tokens()[:, :2], cache)
        for read in model.residual.reads.values():
            for name, query in list(read.named_parameters()):
                setattr(read, name, torch.nn.Parameter(-query.detach()))
        with mode():
            return torch.cat([first, one_by_one(model, networks.tokens()[:, 2:], cache)], dim=1)

    expected = found(torch.enable_grad)
    for mode in (torch.no_grad, torch.inference_mode):
        assert_equal(found(mode), expected, residual)


@BOTH
def test_hooks_on_all_modules_are_told_of_every_read(residual):
    def told(mode):
        model, seen = networks.moved(residual), []
        handle = register_module_forward_pre_hook(lambda module, given: seen.append(type(module).__name__))
        try:
            with mode():
                one_by_one(model, networks.tokens())
        finally:
            handle.remove()
        return seen

    expected = told(torch.enable_grad)
    assert expected.count("Shared") + expected.count("QkV") == 5 * 2 * networks.LAYERS
    for mode in (torch.no_grad, torch.inference_mode):
        assert told(mode) == expected


@BOTH
def test_a_forward_that_replaces_a_reads_own_is_called(residual):
    def found(mode):
        model = networks.moved(residual)
        read = model.residual.reads["3"]
        whole = read.forward
        read.forward = lambda *given: tuple(2 * one for one in whole(*given))
        with mode():
            return one_by_one(model, networks.tokens())

    expected = found(torch.enable_grad)
    for mode in (torch.no_grad, torch.inference_mode):
        assert_equal(found(mode), expected, residual)


@BOTH
def test_an_embedding_may_lie_in_any_order(residual):
    def transposed(module, given, out):
        return out.transpose(0, 2).contiguous().transpose(0, 2)

    def found():
        model = networks.moved(residual)
        model.embed_tokens.register_forward_hook(transposed)
        return one_by_one(model, networks.tokens())

    expected = found()
    with torch.no_grad():
        assert_equal(found(), expected, residual)


@BOTH
def test_an_observer_may_keep_what_it_is_shown(residual):
    class Keeping(Observer):
        def __init__(self):
            self.seen, self.copies = [], []

        def read(self, site, state, mixed):
            self.seen += mixed
            self.copies += [one.clone() for one in mixed]

        def wrote(self, site, value):
            self.seen.append(value)
            self.copies.append(value.clone())

    model, cache, keeping = networks.moved(residual), KeyValueCache(networks.LAYERS, 5), Keeping()
    with torch.inference_mode():
        found = [model(token, cache=cache, observer=keeping) for token in networks.tokens().split(1, dim=1)]
        assert_equal(torch.cat(found, dim=1), one_by_one(model, networks.tokens()), residual)
    assert all(torch.equal(one, its_copy) for one, its_copy in zip(keeping.seen, keeping.copies, strict=True))


@pytest.mark.parametrize("impl", ["reference", "native"])
@pytest.mark.parametrize("own_keys", [False, True])
def test_a_prepared_read_follows_what_its_sources_hold(impl, own_keys):
    queries, gain, *sources = leaves((2, 7), (7,), *[(2, 3, 7)] * (3 if own_keys else 0), *[(2, 3, 20)] * 3)
    keys, values = sources[:-3] or None, sources[-3:]
    reads = {"prior": [0.0, -1.0, 0.5], "eps": EPS, "gain": gain, "impl": impl}
    read = ops.prepared_read(lambda: queries, keys, values, **reads)
    for _ in range(3):
        found = read()
        assert torch.equal(found, ops.attend(queries, keys, values, **reads).mixed)
        assert not found.requires_grad
        with torch.no_grad():
            for source in sources:
                source.mul_(-1.5).add_(0.1)


def test_a_prepared_read_refuses_sources_that_it_would_have_to_copy():
    with pytest.raises(ArgumentError, match=r"contiguous; call \.contiguous"):
        ops.prepared_read(lambda: torch.ones(1, 4), None, [torch.ones(4, 6).T], eps=1e-6, impl="native")
    with pytest.raises(ArgumentError, match="values: there is no source"):
        ops.prepared_read(lambda: torch.ones(1, 4), None, [], eps=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("rank", [1, 9, 64])
@pytest.mark.parametrize("opens", [False, True], ids=["grows", "opens"])
def test_a_prepared_write_of_native_is_the_specifications(dtype, rank, opens):
    with torch.no_grad():
        value, key, output = leaves((2, 3, 71), (2, 3, rank), (2, 3, 71 + rank), dtype=dtype)
        row = output.split([71, rank], dim=-1)  # as a projection leaves them: its tokens lie 71 + rank apart
        places = {impl: (value.clone(), key.clone()) for impl in ("native", "reference")}
        exact = rms_norm(row[1].double(), (rank,), eps=EPS) + (0 if opens else key.double())
        for impl, place in places.items():
            ops.prepared_write(*place, opens=opens, eps=EPS, impl=impl)(*row)
    assert torch.equal(places["native"][0], places["reference"][0])
    assert torch.equal(places["native"][0], row[0] if opens else value + row[0])
    # Rounded once, where the specification rounds the key and then the sum.
    inside = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    rtol = 0.5 * torch.finfo(dtype).eps if dtype in HALVES else 0.0
    assert_close(places["native"][1].double(), exact, rtol=rtol, atol=4 * inside * exact.abs().max().item())
    assert_close(places["reference"][1].double(), exact, rtol=0, atol=2 * torch.finfo(dtype).eps * exact.abs().max())


def test_a_cpu_writes_with_native_where_it_reads_with_it():
    for residual, impl in ((BLOCKS, "native"), (EMITTED, "native"), (EMITTED, "reference")):
        model = networks.moved(residual, computed={"impl": impl})
        writes = places(model, KeyValueCache(networks.LAYERS, 5)).writes.values()
        assert len(writes) == 1 + 2 * networks.LAYERS
        if residual is EMITTED:
            assert {isinstance(write, native_in_place.PreparedWrite) for write in writes} == {impl == "native"}


def test_a_prepared_write_takes_no_output_that_does_not_fit_its_source():
    write = ops.prepared_write(torch.ones(2, 4), torch.ones(2, 3), opens=True, eps=EPS, impl="native")
    with pytest.raises(ArgumentError, match=r"output: \[1, 4\] on cpu does not fit the source's \[2, 4\] on cpu"):
        write(torch.ones(1, 4), torch.ones(1, 3))
    with pytest.raises(ArgumentError, match=r"output: \[2, 4\] on cpu does not fit the source's \[2, 3\] on cpu"):
        write(torch.ones(2, 4), torch.ones(2, 4))
    with pytest.raises(ArgumentError, match=r"output: \[2, 4\] on meta does not fit the source's \[2, 4\] on cpu"):
        write(torch.ones(2, 4, device="meta"), torch.ones(2, 3))
