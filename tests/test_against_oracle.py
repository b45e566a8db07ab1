"""Forward and every gradient of every combination, against the oracle that shares nothing with the library."""

import oracle
import pytest
import torch
from networks import ADDITIVE, EVERY, KEYS, ROUTES, attnres, describe, moved, tokens

DOCUMENTS = torch.tensor([[0, 0, 1, 1, 1], [4, 5, 5, 5, 6]])


def assert_equal_forward_and_gradients(model: torch.nn.Module, documents: torch.Tensor | None = None) -> None:
    described = model.config.model_dump(mode="json")
    twins = {name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()}
    assert {name: tuple(twin.shape) for name, twin in twins.items()} == oracle.parameter_shapes(described)
    ours = model(tokens(), documents)
    expected = oracle.network(described, twins, tokens(), documents)
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)
    direction = torch.randn(expected.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    (ours * direction).sum().backward()
    (expected * direction).sum().backward()
    for name, parameter in model.named_parameters():
        twin = twins[name].grad
        torch.testing.assert_close(parameter.grad, twin, rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("residual", EVERY, ids=describe)
@pytest.mark.parametrize(
    ("gain", "computed"),
    [
        (False, {"impl": "reference", "reads": "direct"}),
        (True, {"impl": "reference", "reads": "direct"}),
        (True, {"impl": "native", "reads": "direct"}),
        (True, {"impl": "native", "reads": "two_phase"}),
    ],
    ids=["gainless", "gain", "native", "native in two phases"],
)
def test_every_combination_equals_the_oracle_forward_and_in_every_gradient(residual, gain, computed):
    assert_equal_forward_and_gradients(moved(residual | {"gain": gain}, computed=computed))


@pytest.mark.parametrize("keys", KEYS, ids=describe)
@pytest.mark.parametrize("routes", ROUTES)
@pytest.mark.parametrize("scaling", [{"alpha": 0.5}, {"beta": 0.7}, {"alpha": 1.0, "beta": 1.0}], ids=describe)
def test_summary_scaling_equals_the_oracle_forward_and_in_every_gradient(keys, routes, scaling):
    assert_equal_forward_and_gradients(
        moved(attnres({"blocks": 2}, keys, routes, **scaling), computed={"reads": "two_phase"})
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"heads": 4, "kv_heads": 2},
        {"heads": 2, "kv_heads": 1, "head_width": 6},
        {"qk_norm": False},
        {"norm_gain": True},
        {"norm_gain": True, "qk_norm": False, "tied": True},
        {"tied": True},
        {"document_mask": True},
        {"document_mask": True, "heads": 4, "kv_heads": 1, "norm_gain": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("residual", [ADDITIVE, attnres({"blocks": 2}, {"projected": 3}, "q_k_v")], ids=describe)
def test_every_option_of_the_model_equals_the_oracle(residual, changes):
    documents = DOCUMENTS if changes.get("document_mask") else None
    assert_equal_forward_and_gradients(moved(residual, **changes), documents)
