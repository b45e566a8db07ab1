"""The benchmark of decoding: that it times what it says."""

import pytest
import torch
from torch.testing import assert_close

from depthroute.bench import decode
from depthroute.errors import ArgumentError
from depthroute.model.cache import KeyValueCache

TINY = {"vocab": 16, "width": 16, "layers": 2, "heads": 2, "hidden": 24}


def test_both_models_and_attention_are_timed_at_every_context():
    rows = decode.measure(["rd"], TINY, 2, [4, 16], 2, 6)
    assert [row["context"] for row in rows] == [4, 16]
    for row in rows:
        assert 0 < row["time_ratio"].low <= row["time_ratio"].value <= row["time_ratio"].high
        assert row["milliseconds"] > 0
    for whose in ("", "prenorm_", "attention_"):
        assert rows[0][f"{whose}growth_milliseconds"].value == 0
        low, high = rows[1][f"{whose}growth_milliseconds"][1:]
        assert low < high


def test_both_models_fetch_the_same_weights_from_the_same_places():
    prenorm, rd = (decode.build(name, TINY, 2, {}) for name in ("prenorm", "rd"))
    expected = rd(torch.arange(5)[None])
    decode.share(rd, prenorm)
    ours, theirs = dict(rd.named_parameters()), dict(prenorm.named_parameters())
    assert all(ours[name] is theirs[name] for name in theirs)
    assert torch.equal(rd(torch.arange(5)[None]), expected)


def test_projected_keys_are_also_timed_against_prenorm_with_their_rows():
    plain, projected = decode.measure(["rd", "rd-plr"], TINY | {"width": 64, "hidden": 64}, 2, [4], 2, 6)
    assert plain["reads_ratio"] == plain["time_ratio"]
    assert projected["reads_ratio"] != projected["time_ratio"]
    prenorm, plr = (decode.build(name, TINY | {"width": 64}, 2, {}) for name in ("prenorm", "plr-block"))
    tokens = torch.arange(5)[None]
    expected = prenorm(tokens)
    for (_, mine), (_, theirs) in zip(prenorm.sublayers(), plr.sublayers(), strict=True):
        for name in ("o_proj", "down_proj"):
            if hasattr(mine, name):
                with torch.no_grad():
                    getattr(theirs, name).weight[:64] = getattr(mine, name).weight
    rows = decode.with_projections(prenorm, plr)
    assert rows.layers[0].self_attn.o_proj is plr.layers[0].self_attn.o_proj
    assert_close(rows(tokens), expected)


def test_contexts_that_do_not_rise_are_refused():
    with pytest.raises(ArgumentError, match=r"contexts: \[8, 4\] must be positive and rise"):
        decode.measure(["rd"], TINY, 2, [8, 4], 2, 6)


def test_every_timing_reads_the_same_tokens_after_the_same_context():
    decoding = decode.Decoding(decode.build("rd", TINY, 2, {}), 4, 3)
    decoding()
    first = decoding.cache.length
    decoding()
    assert (first, decoding.cache.length) == (7, 7)


def test_a_cut_cache_goes_on_as_if_the_rest_had_not_been_read():
    model = decode.build("prenorm", TINY, 2, {})
    tokens = torch.arange(5)[None]
    cache = KeyValueCache(2, 6)
    model(tokens, cache=cache)
    cache.cut(3)
    with torch.no_grad():
        assert_close(model(tokens[:, 3:], cache=cache), model(tokens)[:, 3:])
    with pytest.raises(ArgumentError, match="length: 9 must lie between 0 and the 5 tokens"):
        cache.cut(9)
