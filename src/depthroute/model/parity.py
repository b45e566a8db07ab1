"""How far an implementation of the reads is from fp64, on the shapes of a run: forward, and every gradient.

    error of a tensor = max |x - exact| / max |exact|

The residual goes through the model's loop with random numbers for what embedding and sublayers give: once as the run
computes it, once by the specification in fp64. Nothing of the sublayers is in the error.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from depthroute.model.transformer import ModelConfig
from depthroute.ops import SPECIFICATION
from depthroute.residuals import Residual

SEED = 0


class Parity(NamedTuple):
    """The largest error over all mixtures, the largest over all gradients, and the name of the tensor that has it."""

    forward: float
    gradient: float
    worst: str


def measure(
    config: ModelConfig, impl: str, token: tuple[int, int], device: torch.device, half: bool, two_phase: bool = False
) -> Parity:
    """`token` is batch and length. `half`: the run is autocast to bf16; `two_phase`: its blocks read so."""
    drawn = Drawn(config, token, torch.bfloat16 if half else torch.float32)
    with torch.autocast(device.type, torch.bfloat16, enabled=half):
        ours = drawn.lead(config.residual.build(config.width, config.layers, impl, two_phase), device, None)
    theirs = drawn.lead(config.residual.build(config.width, config.layers, SPECIFICATION, False), device, torch.float64)
    found = [largest(mine, exact) for mine, exact in zip(ours, theirs, strict=True)]
    (forward, read), (gradient, leaf) = found
    return Parity(forward, gradient, read if forward > gradient else f"gradient of {leaf}")


class Drawn:
    """The same random numbers for every implementation: what the embedding and each sublayer give, and parameters."""

    def __init__(self, config: ModelConfig, token: tuple[int, int], dtype: torch.dtype) -> None:
        self.config, self.token = config, token
        self.generator = torch.Generator().manual_seed(SEED)
        residual = config.residual.build(config.width, config.layers, SPECIFICATION, False)
        self.given = {"the embedding": self.normal(*token, config.width)}
        for site in range(2 * config.layers):
            self.given[f"the value of sublayer {site}"] = self.normal(*token, config.width).to(dtype)
            if residual.key_rank:
                self.given[f"the key of sublayer {site}"] = self.normal(*token, residual.key_rank).to(dtype)
        residual.reset_parameters()
        self.parameters = {name: self.near(parameter) for name, parameter in residual.named_parameters()}
        self.cotangents: dict[str, Tensor] = {}

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def near(self, parameter: Tensor) -> Tensor:
        """A matrix is drawn; a vector, such as a query, moves off its start. Logits vary by about 1 at any rank."""
        start = torch.zeros_like(parameter) if parameter.ndim > 1 else parameter.detach()
        return start + self.normal(*parameter.shape) / max(parameter.shape[-1:], default=1) ** 0.5

    def lead(
        self, residual: Residual[Any], device: torch.device, dtype: torch.dtype | None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Every mixture and every gradient, computed in `dtype`, or as the numbers were drawn."""
        residual.to(device, dtype)
        with torch.no_grad():
            for name, parameter in residual.named_parameters():
                parameter.copy_(self.parameters[name])
        given = {name: one.detach().to(device, dtype).requires_grad_() for name, one in self.given.items()}
        mixtures = self.mixtures(residual, given)
        for name, mixed in mixtures.items():
            self.cotangents.setdefault(name, self.normal(*mixed.shape).to(mixed.dtype))
        leaves = given | dict(residual.named_parameters())
        backs = [self.cotangents[name].to(mixed) for name, mixed in mixtures.items()]
        grads = torch.autograd.grad([*mixtures.values()], [*leaves.values()], backs, allow_unused=True)
        gradients = {name: grad for name, grad in zip(leaves, grads, strict=True) if grad is not None}
        return mixtures, gradients

    def mixtures(self, residual: Residual[Any], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        state = residual.start(given["the embedding"])
        for site in range(2 * self.config.layers + 1):
            for route, mixed in enumerate(residual.read(state, site)):
                if mixed.grad_fn is not None:
                    found[f"mixture {route} of site {site}"] = mixed
            if site < 2 * self.config.layers:
                key = given.get(f"the key of sublayer {site}")
                state = residual.write(state, site, given[f"the value of sublayer {site}"], key)
        return found


def largest(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> tuple[float, str]:
    """The largest error, and the name of the tensor that has it."""
    assert ours.keys() == theirs.keys()
    errors = {name: error(mine, theirs[name]) for name, mine in ours.items()}
    worst = max(errors, key=lambda name: errors[name])
    return errors[worst], worst


def error(ours: Tensor, exact: Tensor) -> float:
    """What is not finite is infinitely far."""
    ours, exact = ours.detach(), exact.detach()
    apart, size = float((ours.double() - exact).abs().max()), float(exact.abs().max())
    if apart == 0.0:
        return 0.0
    return apart / size if math.isfinite(apart) and size > 0.0 else math.inf
