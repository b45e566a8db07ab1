"""Reads in place, one token a pass: to the bit what the ordinary reads give, from memory that stays."""

import copy

import networks
import pytest
import torch
from networks import attnres
from reads import EPS, leaves

from depthroute import ops
from depthroute.errors import ArgumentError
from depthroute.model.cache import KeyValueCache
from depthroute.model.transformer import Observer
from depthroute.residuals.attnres.in_place import InPlace

ROUTES = [attnres({"blocks": 4}, routes=routes) for routes in networks.ROUTES]
KEYS = [attnres(sources, keys, "qk_v", gain=True) for sources in networks.SOURCES for keys in networks.KEYS]
SYSTEMS = [networks.ADDITIVE, *ROUTES, *KEYS, attnres({"blocks": 4}, beta=1.0), attnres({"blocks": 2}, alpha=0.5)]
EVERY = pytest.mark.parametrize("residual", SYSTEMS, ids=networks.describe)
BLOCKS = attnres({"blocks": 4}, {"projected": 3}, "qk_v")


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
def test_reads_in_place_are_the_ordinary_reads_to_the_bit(residual, impl):
    model, tokens = networks.moved(residual, computed={"impl": impl}), networks.tokens()
    before = ops.calls.copy()
    expected = one_by_one(model, tokens)
    ordinary = ops.calls - before
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            before = ops.calls.copy()
            assert torch.equal(one_by_one(model, tokens), expected)
            assert ops.calls - before == ordinary


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_they_are_in_every_dtype_and_under_autocast(dtype):
    model, tokens = networks.moved(BLOCKS).to(dtype), networks.tokens()
    for autocast in (False, dtype != torch.float16):  # torch has no autocast of fp16 to bf16
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            expected = one_by_one(model, tokens)
            with torch.inference_mode():
                assert torch.equal(one_by_one(model, tokens), expected)


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


def test_sources_keep_their_places_from_token_to_token():
    model, tokens, cache = networks.moved(BLOCKS), networks.tokens(), KeyValueCache(networks.LAYERS, 5)
    with torch.inference_mode():
        model(tokens[:, :1], cache=cache)
        first = places(model, cache)
        addresses = [source.data_ptr() for source in (*first.values, *first.keys)]
        one_by_one(model, tokens[:, 1:], cache)
    assert places(model, cache) is first
    assert [source.data_ptr() for source in (*first.values, *first.keys)] == addresses


def test_a_copied_cache_goes_on_by_itself():
    model, tokens = networks.moved(BLOCKS), networks.tokens()
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


@pytest.mark.parametrize("residual", [BLOCKS, attnres("full", gain=True), networks.ADDITIVE], ids=networks.describe)
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
        assert torch.equal(found(mode), expected)


def test_hooks_are_told_and_obeyed_as_ever_and_may_keep_what_they_are_given():
    def found(mode):
        model, kept, told = networks.moved(BLOCKS), [], []

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
        assert torch.equal(logits, expected)
        assert ours == told


def test_an_embedding_may_lie_in_any_order():
    def transposed(module, given, out):
        return out.transpose(0, 2).contiguous().transpose(0, 2)

    def found():
        model = networks.moved(BLOCKS)
        model.embed_tokens.register_forward_hook(transposed)
        return one_by_one(model, networks.tokens())

    expected = found()
    with torch.no_grad():
        assert torch.equal(found(), expected)


def test_an_observer_may_keep_what_it_is_shown():
    class Keeping(Observer):
        def __init__(self):
            self.seen, self.copies = [], []

        def read(self, site, state, mixed):
            self.seen += mixed
            self.copies += [one.clone() for one in mixed]

        def wrote(self, site, value):
            self.seen.append(value)
            self.copies.append(value.clone())

    model, cache, keeping = networks.moved(BLOCKS), KeyValueCache(networks.LAYERS, 5), Keeping()
    with torch.inference_mode():
        found = [model(token, cache=cache, observer=keeping) for token in networks.tokens().split(1, dim=1)]
        assert torch.equal(torch.cat(found, dim=1), one_by_one(model, networks.tokens()))
    assert all(torch.equal(one, its_copy) for one, its_copy in zip(keeping.seen, keeping.copies, strict=True))


@pytest.mark.parametrize("impl", ["reference", "native"])
@pytest.mark.parametrize("own_keys", [False, True])
def test_a_prepared_read_follows_what_its_sources_hold(impl, own_keys):
    queries, gain, *sources = leaves((2, 7), (7,), *[(2, 3, 7)] * (3 if own_keys else 0), *[(2, 3, 20)] * 3)
    keys, values = sources[:-3] or None, sources[-3:]
    reads = {"prior": [0.0, -1.0, 0.5], "eps": EPS, "gain": gain, "impl": impl}
    read = ops.prepared(queries, keys, values, **reads)
    for _ in range(3):
        found = read()
        assert torch.equal(found, ops.attend(queries, keys, values, **reads).mixed)
        assert not found.requires_grad
        with torch.no_grad():
            for source in sources:
                source.mul_(-1.5).add_(0.1)


def test_a_prepared_read_refuses_sources_that_it_would_have_to_copy():
    with pytest.raises(ArgumentError, match=r"contiguous; call \.contiguous"):
        ops.prepared(torch.ones(1, 4), None, [torch.ones(4, 6).T], eps=1e-6, impl="native")
    with pytest.raises(ArgumentError, match="values: there is no source"):
        ops.prepared(torch.ones(1, 4), None, [], eps=1e-6)
