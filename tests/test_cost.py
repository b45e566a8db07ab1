"""What a model costs, against the published percentages, torch's own counter and an executed read."""

import json
import sys
from pathlib import Path

import pytest
import torch
from networks import ADDITIVE, EVERY, WIDTH, attnres, config, describe, initial, tokens
from torch.utils.flop_counter import FlopCounterMode

from depthroute import cli, presets
from depthroute.errors import ArgumentError, RunError
from depthroute.model.cost import cost, forward_flops, training_flops
from depthroute.model.sublayers import Attention
from depthroute.model.transformer import ModelConfig, Observer
from depthroute.ops import attend
from depthroute.train.start import compare


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
    flops = forward_flops(ModelConfig.parse(presets.expand_model({"size": "lr-0.5b", "residual": "plr-block"})), 2048)
    assert round(100 * (flops.score + flops.mix) / flops.linear, 4) == 0.0904
    assert round(100 * flops.key_projection / flops.linear, 4) == 0.9673


@pytest.mark.parametrize("residual", EVERY, ids=describe)
def test_the_routes_of_a_read_are_the_rows_of_its_queries(residual):
    model = initial(residual)
    assert all(len(read.routes) == len(read.queries()) for read in model.residual.reads.values())


def test_a_training_token_of_prenorm_costs_six_flops_a_weight_and_its_attention():
    weights = 3 * (4 * 8 * 8 + 3 * 8 * 12) + 11 * 8
    scores_and_mixtures = 3 * 2 * 2 * 8 * (5 + 1) / 2
    assert training_flops(config(ADDITIVE), 5) == 6 * weights + 3 * scores_and_mixtures


# Every preset, at sizes without a common divisor.
ODD = {"width": 15, "heads": 3, "head_width": 6, "hidden": 23, "layers": 3, "vocab": 13}
PRESETS = [presets.residual(name, rank=4 if preset.rank else None) for name, preset in presets.PRESETS.items()]
every_preset = pytest.mark.parametrize("residual", PRESETS, ids=list(presets.PRESETS))
LENGTH = 7


def passed(model, tokens, **options):
    return model(torch.randint(13, (1, tokens), generator=torch.Generator().manual_seed(0)), **options)


@every_preset
def test_parameters_by_part_add_up_to_those_of_the_model(residual):
    parts = cost(config(residual, **ODD), LENGTH, stages=1).parameters
    model = initial(residual, **ODD)
    assert sum(parts.values()) == sum(parameter.numel() for parameter in model.parameters())
    assert parts["attention"] + parts["mlp"] == sum(
        parameter.numel() for parameter in initial(ADDITIVE, **ODD).layers.parameters()
    )


@every_preset
def test_products_with_weights_are_those_that_torch_counts(residual):
    counted = cost(config(residual, kv_heads=1, **ODD), LENGTH, stages=1).flops
    model = initial(residual, kv_heads=1, **ODD)
    flops = 0
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            with FlopCounterMode(display=False) as counter:
                module(torch.zeros(1, module.in_features, dtype=torch.float64))
            flops += counter.get_total_flops()
    assert counted.linear + counted.key_projection + counted.head == flops


class Einsums(Observer):
    """Carries out every read that it sees as two einsums, and counts their FLOPs."""

    def __init__(self, residual):
        self.residual, self.flops = residual, {}

    def read(self, site, state, mixed):
        reading = self.residual.reading(state, site)
        if reading is None:
            return
        keys, values = (torch.stack([*tensors]).flatten(1, -2) for tensors in (reading.keys, reading.values))
        for route, query in zip(self.residual.labels(site).routes, reading.queries, strict=True):
            with FlopCounterMode(display=False) as counter:
                weights = torch.einsum("qr,str->qst", query[None], keys)
                torch.einsum("qst,std->qtd", weights, values)
            self.flops[route] = self.flops.get(route, 0) + counter.get_total_flops()

    def wrote(self, site, value):
        pass


@every_preset
def test_flops_of_the_reads_are_those_of_two_einsums_route_by_route(residual):
    model = initial(residual, **ODD)
    seen = Einsums(model.residual)
    passed(model, LENGTH, observer=seen)
    counted = cost(config(residual, **ODD), LENGTH, stages=1)
    assert {name: LENGTH * (route["score"] + route["mix"]) for name, route in counted.routes.items()} == seen.flops


def kept_bytes(model, run):
    """Bytes of all distinct activations that autograd saves while `run` runs: parameters and constants apart."""
    constant = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in constant and tensor.dtype == torch.float32:
            saved[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = run()
    del output
    return sum(size for size, _ in saved.values())


@pytest.mark.parametrize("inputs", [1, 2, 3])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_bytes_that_a_sublayer_keeps_are_those_that_autograd_saves(inputs, qk_norm):
    model = initial(ADDITIVE, kv_heads=1, qk_norm=qk_norm, **ODD).float()
    context = model.context(torch.zeros(1, LENGTH, 15), None, None, None, None)
    for (_, sublayer), fed in zip(model.sublayers(), (inputs, 1), strict=False):
        given = tuple(torch.randn(1, LENGTH, 15, requires_grad=True) for _ in range(fed))
        # Cosines and sines, which all layers share; and a CPU's mixture, which lies head by head and is copied in rows.
        beside = 2 * LENGTH * 3 * 4 + LENGTH * 18 * 4 if isinstance(sublayer, Attention) else 0
        measured = kept_bytes(model, lambda sublayer=sublayer, given=given: sublayer(given, context))
        assert LENGTH * sublayer.kept(4, fed) == measured - beside


def test_bytes_of_sources_are_those_of_the_tensors_that_are_read():
    for residual in PRESETS:
        model = initial(residual, **ODD).float()
        weighed = model.residual.bytes(4)

        class Weigh(Observer):
            def read(self, site, state, mixed, model=model, weighed=weighed):
                reading = model.residual.reading(state, site)
                if reading is not None:
                    alive = [*reading.values, *(reading.keys if model.residual.key_rank else ())]
                    assert sum(tensor.nbytes for tensor in alive) == LENGTH * weighed.state[site]
                assert len(mixed) == weighed.fed[site]

            def wrote(self, site, value):
                pass

        passed(model, LENGTH, observer=Weigh())


def test_bytes_of_reads_of_four_layers_in_two_blocks_counted_by_hand():
    residual = presets.residual("rd", blocks=2)
    model = config(residual, **(ODD | {"layers": 2}))
    # Sites 1 to 4 weigh 2, 2, 3 and 3 sources for 1, 2, 1 and 1 routes; sites 1 and 3 have a live sum.
    assert cost(model, LENGTH, element=2, stages=2).read_bytes == {
        "direct": 2 * 15 * (2 + 2 + 3 + 3 + 5),
        # The first block, and the first site of the second, read all at once; sites 3 and 4 join one source each.
        "two_phase": 2 * 15 * ((2 + 1) + (2 + 2)) + 2 * (2 * 15 * (3 + 1) + 2 * 4),
    }
    # The one boundary, before site 2, has two sources where the running sum is one.
    assert cost(model, LENGTH, element=2, stages=2).sent_bytes == {"running_sum": 30, "extra": 30}


SCHEDULED = [("full", "value"), ("full", {"subset": {"rank": 3, "seed": 5}}), ({"blocks": 1}, "value")]
SCHEDULED += [({"blocks": 2}, {"projected": 3}), ({"blocks": 4}, {"sliced": 3}), ({"block_sublayers": 4}, "value")]


@pytest.mark.parametrize("schedule", ["direct", "two_phase"])
@pytest.mark.parametrize("routes", ["shared", "qk_v", "average"])
@pytest.mark.parametrize(("sources", "keys"), SCHEDULED, ids=str)
def test_bytes_moved_are_those_of_the_reads_that_are_carried_out(sources, keys, routes, schedule, monkeypatch):
    model, moved = initial(attnres(sources, keys, routes), computed={"reads": schedule}), 0

    def noted(queries, keys, values, prior=None, before=None, **options):
        nonlocal moved
        mixtures = 2 * len(queries) * WIDTH
        moved += sum(2 * tensor.shape[-1] for tensor in (*values, *(keys or ()))) + mixtures
        if before is not None:  # partial mixtures are read again; their log-normalisers were written, and are read
            moved += mixtures + 2 * 4 * len(queries)
        return attend(queries, keys, values, prior, before, **options)

    for place in ("depthroute.residuals.attnres.attend", "depthroute.residuals.attnres.routes.attend"):
        monkeypatch.setattr(place, noted)
    model(tokens())
    assert moved == getattr(model.residual.bytes(2), schedule)


def test_two_phases_move_less_where_blocks_are_long():
    model = ModelConfig.parse(presets.expand_model({"size": "lr-0.5b", "residual": "attnres-block"}))
    moved = cost(model, 2048).read_bytes
    assert moved["two_phase"] < 0.7 * moved["direct"]


def test_added_flops_of_all_count_attention_and_head_into_the_transformer():
    flops = cost(config(attnres(), **ODD), LENGTH, stages=1).flops
    whole, bare = sum(flops), sum(cost(config(ADDITIVE, **ODD), LENGTH, stages=1).flops)
    assert flops.added_percent_of_all == pytest.approx(100 * (whole - bare) / bare, rel=1e-12)


def test_more_pipeline_stages_than_layers_are_refused():
    with pytest.raises(ArgumentError, match="stages: 4 pipeline stages for 3 layers; give 1 to 3"):
        cost(config(ADDITIVE), LENGTH, stages=4)


def test_how_a_cost_is_counted_is_no_reason_to_refuse_a_resume(tmp_path):
    compare(tmp_path, {"impl": "x", "cost": {"length": 1}}, {"impl": "x", "cost": {"length": 2, "stages": 1}})
    with pytest.raises(RunError, match="its bits would differ: impl"):
        compare(tmp_path, {"impl": "x"}, {"impl": "y", "cost": {"length": 1}})


@pytest.fixture
def user(monkeypatch, capsys, as_a_user):
    """Someone who types `depthroute cost`: exit code, stdout and stderr."""

    def types(*arguments):
        monkeypatch.setattr(sys, "argv", ["depthroute", "cost", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return (stop.value.code or 0, *capsys.readouterr())

    return types


def test_the_command_prints_one_table_of_several_presets_and_the_same_numbers_as_json(user):
    names = ("prenorm", "attnres-full", "rd", "rd-plr")
    _, table, _ = user(*names)
    assert [line.split()[0] for line in table.splitlines()[2:]] == list(names)
    found = json.loads(user(*names, "--json")[1])
    assert found["rd-plr"]["parameters"]["total"] == 516_632_800
    assert f"{found['rd-plr']['added_percent']:.4f}" == "1.0998"
    assert "1.0998" in table


def test_a_config_is_counted_at_its_own_length_and_precision_and_in_no_more_stages_than_layers(user, tmp_path):
    own = tmp_path / "own.yaml"
    example = Path(__file__).parents[1].joinpath("examples/tiny.yaml").read_text(encoding="utf-8")
    own.write_text(example.replace("  size: tiny", "  layers: 2\n  size: tiny"))
    found = json.loads(user(str(own), "rd", "--json")[1])
    assert [(one["length"], one["element"], one["stages"]) for one in found.values()] == [(128, 4, 2), (2048, 2, 4)]
    first = user(str(own), "rd")[1].splitlines()[0]
    assert first == ("a token of 128 / 2,048 in a causal sequence; coordinates of 4 / 2 bytes; 2 / 4 pipeline stages")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rdd"], "'rdd' is no file and no preset (did you mean 'rd'?"),
        (["rd", "--size", "tiny"], "--vocab: size 'tiny' names no vocabulary"),
        (["rd", "--vocab", "9"], "--vocab: rd has its own vocabulary of 100277"),
        (["rd", "--precision", "fp16"], "--precision: 'fp16' is unknown"),
        (["rd", "--stages", "25"], "stages: 25 pipeline stages for 24 layers; give 1 to 24"),
        (["nowhere.yaml"], "nowhere.yaml: no such file"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message, user):
    code, out, err = user(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {message}")
