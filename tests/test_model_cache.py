"""A pass that goes on from a cache computes what one pass over all tokens computes."""

import networks
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from depthroute.errors import ArgumentError
from depthroute.model.cache import KeyValueCache

SYSTEMS = {
    "additive": networks.ADDITIVE,
    "full": networks.attnres(),
    "block": networks.attnres({"blocks": 4}),
    "subset": networks.attnres({"blocks": 4}, {"subset": {"rank": 3, "seed": 5}}),
    "projected qkv": networks.attnres({"block_layers": 2}, {"projected": 3}, "q_k_v", gain=True),
}
EXACT = {"rtol": 0, "atol": 1e-12}


def in_pieces(model, tokens, sizes):
    """Logits of all tokens, read in passes of the given sizes, each going on from the cache."""
    cache = KeyValueCache(model.config.layers, tokens.shape[1])
    return torch.cat([model(piece, cache=cache) for piece in tokens.split(sizes, dim=1)], dim=1)


@pytest.mark.parametrize("residual", SYSTEMS.values(), ids=SYSTEMS)
@pytest.mark.parametrize("sizes", [[1] * 6, [4, 1, 1], [2, 3, 1]], ids=str)
def test_a_cached_pass_gives_the_logits_of_a_whole_one(residual, sizes):
    model, tokens = networks.moved(residual), networks.tokens(length=6)
    assert_close(in_pieces(model, tokens, sizes), model(tokens), **EXACT)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.booleans(), st.sampled_from([1, 2]))
def test_the_cut_into_passes_does_not_matter(sizes, qk_norm, kv_heads):
    model = networks.moved(SYSTEMS["block"], qk_norm=qk_norm, kv_heads=kv_heads)
    tokens = networks.tokens(length=sum(sizes))
    assert_close(in_pieces(model, tokens, sizes), model(tokens), **EXACT)


def test_a_model_that_masks_by_document_reads_one_document_from_a_cache():
    model, tokens = networks.moved(SYSTEMS["block"], document_mask=True), networks.tokens(length=6)
    assert_close(in_pieces(model, tokens, [3, 2, 1]), model(tokens, torch.zeros_like(tokens)), **EXACT)
    with pytest.raises(ArgumentError, match="documents: a cache holds one document"):
        model(tokens, torch.zeros_like(tokens), cache=KeyValueCache(networks.LAYERS, 6))


def test_padding_on_the_left_that_nothing_sees_changes_nothing():
    model, tokens = networks.moved(SYSTEMS["block"]), networks.tokens(length=5)
    padded = torch.nn.functional.pad(tokens, (3, 0))
    seen = torch.ones(8, 8, dtype=torch.bool).tril() & (torch.arange(8) >= 3)
    visible = (seen | torch.eye(8, dtype=torch.bool))[None, None]
    alone = model(tokens)
    assert_close(model(padded, visible=visible)[:, 3:], alone, **EXACT)
    positions = (torch.arange(8) - 3).clamp(min=0)
    assert_close(model(padded, visible=visible, positions=positions)[:, 3:], alone, **EXACT)
    assert_close(model(padded, visible=visible, positions=positions.expand(2, 8))[:, 3:], alone, **EXACT)


def test_only_the_distance_between_positions_matters():
    model, tokens = networks.moved(SYSTEMS["block"]), networks.tokens()
    assert_close(model(tokens, positions=torch.arange(1000, 1005)), model(tokens), rtol=0, atol=1e-10)
    assert not torch.equal(model(tokens, positions=2 * torch.arange(5)), model(tokens))


def test_logits_of_the_last_tokens_are_the_last_of_all_logits():
    model, tokens = networks.moved(SYSTEMS["block"], tied=True), networks.tokens()
    assert_close(model(tokens, last=2), model(tokens)[:, -2:], **EXACT)


def test_a_cache_that_is_full_says_so():
    model, tokens = networks.initial(networks.ADDITIVE), networks.tokens()
    cache = KeyValueCache(networks.LAYERS, 4)
    with pytest.raises(ArgumentError, match="cache: has room for 4 tokens, and these are 5"):
        model(tokens, cache=cache)


@pytest.mark.parametrize("tokens", [10**14, 10**18, 10**19])
def test_a_cache_that_no_memory_can_hold_says_so(tokens):
    model, cache = networks.initial(networks.ADDITIVE), KeyValueCache(networks.LAYERS, tokens)
    with pytest.raises(ArgumentError, match=f"^cache: no memory for {tokens} tokens; make it smaller$"):
        model(networks.tokens(), cache=cache)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), ArgumentError),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."), ArgumentError),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), RuntimeError),
    ],
)
def test_only_an_error_of_memory_is_called_one(monkeypatch, raised, expected):
    def fails(tensor, *shape):
        raise raised

    monkeypatch.setattr(torch.Tensor, "new_empty", fails)
    key = torch.zeros(1, 2, 5, 4)
    with pytest.raises(expected) as caught:
        KeyValueCache(1, 8).update(key, key, 0)
    assert caught.type is expected
