"""The benchmark of decoding: its statistics, and that it times what it says."""

import pytest
import torch
from torch.testing import assert_close

from depthroute.bench import decode
from depthroute.errors import ArgumentError
from depthroute.model.cache import KeyValueCache

TINY = {"vocab": 16, "width": 16, "layers": 2, "heads": 2, "hidden": 24}


@pytest.mark.parametrize(("count", "ranks"), [(6, (1, 6)), (10, (2, 9)), (15, (4, 12)), (20, (6, 15))])
def test_the_interval_of_a_median_is_the_tabulated_pair_of_ranks(count, ranks):
    assert decode.median_interval([float(rank) for rank in range(count, 0, -1)]) == ranks


def test_both_models_and_attention_are_timed_at_every_context():
    found = decode.run("rd", shape=TINY, contexts=(4, 16), rounds=6, tokens=2)
    assert [row["context"] for row in found["contexts"]] == [4, 16]
    for row in found["contexts"]:
        low, high = row["interval"]
        assert 0 < low <= row["overhead"] <= high
        assert set(row["seconds"]) == set(row["growth"]) == {"prenorm", "rd", "attention"}
        assert row["seconds"]["attention"] < row["seconds"]["prenorm"]
    assert set(found["contexts"][0]["growth"].values()) == {0.0}


def test_a_model_against_itself_costs_nothing_more():
    shared = decode.Transformer(decode.ModelConfig.parse(TINY | {"residual": {"name": "additive"}})).initialise(0)
    row = decode.measure({"prenorm": shared, "same": shared}, "same", context=8, rounds=9, tokens=2)
    low, high = row["interval"]
    assert low <= 1 <= high


@pytest.mark.parametrize(
    ("options", "message"),
    [({"rounds": 5}, "rounds: 5 are too few"), ({"contexts": (8, 4)}, r"contexts: \[8, 4\] must be positive and rise")],
)
def test_what_cannot_be_measured_is_said(options, message):
    with pytest.raises(ArgumentError, match=message):
        decode.run("rd", shape=TINY, **options)


def test_every_timing_reads_the_same_tokens_after_the_same_context():
    model = decode.Transformer(decode.ModelConfig.parse(TINY | {"residual": {"name": "additive"}})).initialise(0)
    timer = decode.Timer(model, 4, 3)
    timer()
    first = timer.cache.length
    timer()
    assert (first, timer.cache.length) == (7, 7)


def test_a_cut_cache_goes_on_as_if_the_rest_had_not_been_read():
    model = decode.Transformer(decode.ModelConfig.parse(TINY | {"residual": {"name": "additive"}})).initialise(0)
    tokens = torch.arange(5)[None]
    cache = KeyValueCache(2, 6)
    model(tokens, cache=cache)
    cache.cut(3)
    with torch.no_grad():
        assert_close(model(tokens[:, 3:], cache=cache), model(tokens)[:, 3:])
    with pytest.raises(ArgumentError, match="length: 9 must lie between 0 and the 5 tokens"):
        cache.cut(9)
