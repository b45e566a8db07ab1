"""What a model costs, against the published percentages, torch's own counter and an executed read."""

import pytest
import torch
from networks import ADDITIVE, EVERY, config, describe, initial
from torch.utils.flop_counter import FlopCounterMode

from depthroute import presets
from depthroute.model.cost import forward_flops, training_flops
from depthroute.model.transformer import ModelConfig


@pytest.mark.parametrize(
    ("residual", "percent"),
    [
        ("attnres-full", 0.8131),
        ("attnres-block", 0.1754),
        ({"preset": "attnres-block", "blocks": 16}, 0.3029),
        ("slr-block", 0.0932),
        ({"preset": "slr-full", "rank": 512}, 0.6099),
        ("plr-block", 1.0577),
        ("rd", 0.2571),
        ("rd-qkv", 0.3388),
        ("rd-slr", 0.1366),
        ("rd-plr", 1.0998),
    ],
    ids=str,
)
def test_added_flops_of_the_low_rank_papers_model_are_the_published_ones(residual, percent):
    model = ModelConfig.parse(presets.expand_model({"size": "lr-0.5b", "residual": residual}))
    assert round(forward_flops(model, 2048).added_percent, 4) == percent


def test_the_shares_of_reads_and_key_projections_are_the_published_ones():
    cost = forward_flops(ModelConfig.parse(presets.expand_model({"size": "lr-0.5b", "residual": "plr-block"})), 2048)
    assert round(100 * (cost.score + cost.mix) / cost.linear, 4) == 0.0904
    assert round(100 * cost.key_projection / cost.linear, 4) == 0.9673


@pytest.mark.parametrize("residual", EVERY, ids=describe)
def test_executed_mixtures_are_the_rows_of_the_queries(residual):
    model = initial(residual)
    assert all(read.executed == len(read.queries()) for read in model.residual.reads.values())


def test_a_training_token_of_prenorm_costs_six_flops_a_weight_and_its_attention():
    weights = 3 * (4 * 8 * 8 + 3 * 8 * 12) + 11 * 8
    scores_and_mixtures = 3 * 2 * 2 * 8 * (5 + 1) / 2
    assert training_flops(config(ADDITIVE), 5) == 6 * weights + 3 * scores_and_mixtures


@pytest.mark.parametrize("keys", ["value", {"projected": 3}], ids=describe)
def test_products_with_weights_are_those_that_torch_counts(keys):
    residual = ADDITIVE if keys == "value" else {"name": "attnres", "keys": keys}
    cost = forward_flops(config(residual, heads=4, kv_heads=2), 5)
    model = initial(residual, heads=4, kv_heads=2)
    counted = 0
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            with FlopCounterMode(display=False) as counter:
                module(torch.zeros(1, module.in_features, dtype=torch.float64))
            counted += counter.get_total_flops()
    assert cost.linear + cost.key_projection + cost.head == counted
