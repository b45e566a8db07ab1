import math

import pytest
import torch
from torch.optim._muon import _zeropower_via_newtonschulz

from depthroute.config import MatricesConfig, OptimizerConfig, ScheduleConfig
from depthroute.errors import ArgumentError
from depthroute.model.transformer import ModelConfig, Transformer
from depthroute.presets import PRESETS, expand_model
from depthroute.train import optim
from depthroute.train.schedule import factor


def network(preset, **keys):
    raw = {"vocab": 50, "width": 64, "layers": 3, "heads": 4, "kv_heads": 2, "hidden": 48, "residual": preset} | keys
    return Transformer(ModelConfig.parse(expand_model(raw)), "reference").initialise(0)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("norm_gain", [False, True])
def test_every_parameter_of_every_preset_is_in_exactly_one_group(preset, norm_gain):
    model = network(preset, norm_gain=norm_gain, tied=norm_gain)
    grouped = [
        parameter
        for optimizer in optim.optimizers(model, OptimizerConfig())
        for group in optimizer.param_groups
        for parameter in group["params"]
    ]
    assert sorted(map(id, grouped)) == sorted(map(id, model.parameters()))


def test_matrices_decay_and_nothing_else_does():
    model = network("rd-plr", norm_gain=True)
    muon, adamw = optim.optimizers(model, OptimizerConfig())
    decayed = {id(parameter) for parameter in muon.param_groups[0]["params"]}
    names = {name for name, parameter in model.named_parameters() if id(parameter) in decayed}
    assert {
        "layers.0.self_attn.o_proj.weight",
        "layers.2.mlp.gate_proj.weight",
        "residual.embedding_key.weight",
    } < names
    assert names == {name for name in dict(model.named_parameters()) if "_proj" in name or "embedding_key" in name}
    assert [group["weight_decay"] for group in muon.param_groups] == [0.1]
    assert {group["weight_decay"] for group in adamw.param_groups} == {0.0}


def test_value_and_key_rows_of_an_output_projection_are_one_matrix():
    model = network("rd-plr")
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert shapes["layers.0.self_attn.o_proj.weight"] == (64 + 32, 64)
    assert optim.kind("layers.0.self_attn.o_proj.weight") == "matrices"
    assert optim.kind("residual.embedding_key.weight") == "matrices"


def test_queries_have_a_learning_rate_of_their_own():
    model = network("rd")
    config = OptimizerConfig(matrices=MatricesConfig.parse({"method": "adamw"}), queries=0.5)
    (adamw,) = optim.optimizers(model, config)
    queries = {id(parameter) for name, parameter in model.named_parameters() if ".reads." in name}
    assert queries == {id(p) for group in adamw.param_groups if group["peak"] == 0.5 for p in group["params"]}


@pytest.mark.parametrize("name", ["reads.3.query", "layers.0.self_attn.z_proj.weight", "scale"])
def test_a_parameter_of_no_kind_is_an_error_that_names_it(name):
    with pytest.raises(ArgumentError, match=f"parameter {name} is of no kind"):
        optim.kind(name)


def test_the_learning_rate_scales_the_peak_of_every_group():
    optimizers = optim.optimizers(network("rd"), OptimizerConfig())
    optim.set_learning_rate(optimizers, 0.5)
    optim.set_learning_rate(optimizers, 0.25)
    for optimizer in optimizers:
        assert all(group["lr"] == group["peak"] / 4 for group in optimizer.param_groups)


@pytest.mark.parametrize("shape", [(8, 8), (12, 5), (5, 12)])
def test_the_orthogonalised_matrix_is_that_of_exact_arithmetic(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    s = s / matrix.norm()
    a, b, c = optim.MUON_COEFFICIENTS
    for _ in range(5):
        s = a * s + b * s**3 + c * s**5
    torch.testing.assert_close(optim.orthogonal(matrix), u @ torch.diag(s) @ vh, rtol=0, atol=1e-12)
    torch.testing.assert_close(optim.orthogonal(matrix.float()).double(), u @ torch.diag(s) @ vh, rtol=0, atol=1e-5)


def test_the_orthogonalised_matrix_is_that_of_torch_up_to_bf16():
    matrix = torch.randn(6, 9, generator=torch.Generator().manual_seed(1))
    torchs = _zeropower_via_newtonschulz(matrix, optim.MUON_COEFFICIENTS, 5, 1e-7).float()
    torch.testing.assert_close(optim.orthogonal(matrix), torchs, rtol=0, atol=0.05)


@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
def test_a_step_is_that_of_torchs_muon_with_the_iteration_in_fp32(adjust, monkeypatch):
    config = MatricesConfig.parse({"learning_rate": 0.1, "adjust_lr": adjust, "momentum": 0.9})
    generator = torch.Generator().manual_seed(2)
    mine, theirs = ([torch.nn.Parameter(torch.ones(shape)) for shape in ((6, 4), (4, 6))] for _ in range(2))
    ours = optim.Muon([{"params": mine, "lr": 0.1, "weight_decay": 0.1}], config)
    reference = torch.optim.Muon(theirs, lr=0.1, weight_decay=0.1, momentum=0.9, adjust_lr_fn=adjust)
    monkeypatch.setattr("torch.optim._muon._zeropower_via_newtonschulz", lambda g, *_: optim.orthogonal(g))
    for _ in range(3):
        for a, b in zip(mine, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.clone()
        ours.step()
        reference.step()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_the_schedule_warms_up_stays_and_decays_to_its_end():
    schedule = ScheduleConfig(kind="wsd", warmup=4, decay=0.25, final=0.2)
    factors = [factor(schedule, step, 20) for step in range(1, 21)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert set(factors[3:15]) == {1.0}
    assert factors[15:] == pytest.approx([0.84, 0.68, 0.52, 0.36, 0.2])


def test_the_cosine_ends_at_its_fraction_and_is_half_way_in_the_middle():
    schedule = ScheduleConfig(kind="cosine", warmup=10, final=0.1)
    assert factor(schedule, 10, 110) == 1.0
    assert factor(schedule, 60, 110) == pytest.approx(0.55)
    assert factor(schedule, 110, 110) == pytest.approx(0.1)
    assert factor(schedule, 35, 110) == pytest.approx(1 - 0.9 * (1 - math.cos(math.pi / 4)) / 2)


def test_no_warmup_and_no_decay_is_a_constant():
    assert {factor(ScheduleConfig(warmup=0, decay=0.0), step, 9) for step in range(1, 10)} == {1.0}
