"""What every residual of the folder promises, whatever its name."""

import pytest
import torch
from networks import LAYERS, WIDTH, config, tokens

from depthroute import presets, residuals
from depthroute.model.transformer import Transformer

NAMED = [{"name": name} for name in residuals.names()]
PRESETS = [presets.residual(name, rank=4 if preset.rank else None) for name, preset in presets.PRESETS.items()]
EVERY = pytest.mark.parametrize("raw", [*NAMED, *PRESETS], ids=[*residuals.names(), *presets.PRESETS])
PHASES = pytest.mark.parametrize("two_phase", [False, True], ids=["direct", "two phases"])


def tensors(state: object) -> list[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return [state]
    assert isinstance(state, tuple), f"{type(state)} is not immutable"
    return [tensor for part in state for tensor in tensors(part)]


def walk(residual: residuals.Residual, dtype: torch.dtype):
    """Every state of a pass whose sublayers give random values, with what each site is fed."""
    generator = torch.Generator().manual_seed(0)

    def normal(width: int) -> torch.Tensor:
        return torch.randn(2, 3, width, generator=generator).to(dtype)

    state = residual.start(normal(WIDTH).float())
    for site in range(2 * LAYERS):
        yield site, state, residual.read(state, site)
        key = normal(residual.key_rank) if residual.key_rank else None
        state = residual.write(state, site, normal(WIDTH), key)
    yield 2 * LAYERS, state, residual.read(state, 2 * LAYERS)


@EVERY
@PHASES
def test_a_state_is_an_immutable_tuple_of_tensors_in_the_embeddings_dtype(raw, two_phase):
    residual = residuals.parse(raw).build(WIDTH, LAYERS, "auto", two_phase)
    for _, state, _ in walk(residual, torch.bfloat16):
        assert {tensor.dtype for tensor in tensors(state)} == {torch.float32}


@EVERY
@PHASES
def test_a_site_is_fed_one_two_or_three_tensors_of_the_models_width(raw, two_phase):
    residual = residuals.parse(raw).build(WIDTH, LAYERS, "auto", two_phase)
    for site, _, fed in walk(residual, torch.float32):
        assert isinstance(fed, tuple)
        assert 1 <= len(fed) <= (3 if site % 2 == 0 and site < 2 * LAYERS else 1)
        assert all(tensor.shape == (2, 3, WIDTH) for tensor in fed)


@EVERY
@PHASES
def test_writing_leaves_the_earlier_state_as_it_was(raw, two_phase):
    residual = residuals.parse(raw).build(WIDTH, LAYERS, "auto", two_phase)
    kept = []
    for _, state, _ in walk(residual, torch.float32):
        kept.append(([tensor.clone() for tensor in tensors(state)], tensors(state)))
    for before, after in kept:
        assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


@EVERY
def test_nothing_of_a_forward_pass_stays_on_the_model(raw):
    model = Transformer(config(raw)).initialise(0)
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    first = model(tokens())
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before
    assert torch.equal(model(tokens()), first)


@EVERY
def test_a_network_under_bf16_autocast_stays_near_its_fp32_self(raw):
    model = Transformer(config(raw)).initialise(0)
    exact = model(tokens())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model(tokens())
    assert rough.dtype == torch.bfloat16
    assert (rough.float() - exact).abs().max() < 0.05 * exact.abs().max()
