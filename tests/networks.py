"""Small networks and every combination of the family, for the tests of the mathematics."""

import itertools
from typing import Any, get_args

import torch

from depthroute.model.transformer import ModelConfig, Transformer
from depthroute.residuals.attnres.routes import Route

WIDTH, LAYERS, VOCAB = 8, 3, 11
SOURCES: list[Any] = ["full", {"blocks": 4}, {"block_layers": 2}, {"block_sublayers": 4}]
KEYS: list[Any] = ["value", {"sliced": 3}, {"subset": {"rank": 3, "seed": 5}}, {"projected": 3}]
ROUTES = list(get_args(Route))


def attnres(sources: Any = "full", keys: Any = "value", routes: str = "shared", **changes: Any) -> dict[str, Any]:
    return {"name": "attnres", "sources": sources, "keys": keys, "routes": routes, "eps": 1e-6} | changes


ADDITIVE = {"name": "additive"}
EVERY = [attnres(*axes) for axes in itertools.product(SOURCES, KEYS, ROUTES)]


def describe(value: Any) -> str:
    """A test id such as blocks4-sliced3-qk_v."""
    if isinstance(value, dict) and "name" in value:
        return "-".join(describe(part) for key, part in value.items() if key not in ("name", "eps"))
    if isinstance(value, dict):
        return "".join(f"{key}{describe(part)}" for key, part in value.items())
    return str(value)


def config(residual: dict[str, Any], **changes: Any) -> ModelConfig:
    shape = {"vocab": VOCAB, "width": WIDTH, "layers": LAYERS, "heads": 2, "hidden": 12, "norm_eps": 1e-6}
    return ModelConfig.parse(shape | {"init_std": 0.3, "embedding_std": 1.0, "residual": residual} | changes)


def initial(residual: dict[str, Any], seed: int = 0, computed: Any = None, **changes: Any) -> Transformer:
    """A network in fp64 as it starts: queries zero. `computed` says how, as the Transformer takes it."""
    return Transformer(config(residual, **changes), **(computed or {})).initialise(seed).double()


def moved(residual: dict[str, Any], seed: int = 0, computed: Any = None, **changes: Any) -> Transformer:
    """A network in fp64 none of whose parameters stands where it started."""
    model = initial(residual, seed, computed, **changes)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def tokens(batch: int = 2, length: int = 5) -> torch.Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(7))
