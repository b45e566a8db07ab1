"""Which parameter gets which optimizer, decided by its name, and Muon with an iteration that a CPU can run fast.

matrices    weights of the layers, and of the residual             Muon or AdamW, decay
embedding, head, gains (of norms), queries (vectors and numbers of the residual)     AdamW, no decay
"""

import math
import re
from collections.abc import Mapping
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from depthroute.config import MatricesConfig, OptimizerConfig
from depthroute.errors import ArgumentError

KINDS = {
    "matrices": r"layers\.\d+\.self_attn\.[qkvo]_proj\.weight"
    r"|layers\.\d+\.mlp\.(gate|up|down)_proj\.weight"
    r"|residual\.(.+\.)?weight",
    "embedding": r"embed_tokens\.weight",
    "head": r"lm_head\.weight",
    "gains": r"(.+\.)?(norm|[qk]_norm|input_layernorm|post_attention_layernorm)\.weight",
    "queries": r"residual\.(?!(.+\.)?weight$).+",
}
MUON_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def kind(name: str) -> str:
    """The kind of the parameter of this name. ArgumentError if it has none, or two."""
    kinds = [kind for kind, pattern in KINDS.items() if re.fullmatch(pattern, name)]
    if len(kinds) != 1:
        raise ArgumentError(f"parameter {name} is of {kinds or 'no kind'}: name it so that it is one of {list(KINDS)}")
    return kinds[0]


def by_kind(model: nn.Module) -> dict[str, list[Tensor]]:
    """Every trained parameter of the model under its one kind; kinds without parameters are left out."""
    groups: dict[str, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups.setdefault(kind(name), []).append(parameter)
    return {name: groups[name] for name in KINDS if name in groups}


def optimizers(model: nn.Module, config: OptimizerConfig) -> list[Optimizer]:
    """One optimizer, or two with Muon. Each group keeps the peak of its learning rate as `peak`."""
    groups = by_kind(model)
    rates = {"embedding": config.embedding, "head": config.head, "gains": config.gains, "queries": config.queries}
    plain: list[dict[str, Any]] = [
        {"params": groups[kind], "lr": rate, "peak": rate, "weight_decay": 0.0}
        for kind, rate in rates.items()
        if kind in groups
    ]
    matrices = {
        "params": groups["matrices"],
        "lr": config.matrices.learning_rate,
        "peak": config.matrices.learning_rate,
        "weight_decay": config.matrices.weight_decay,
    }
    if config.matrices.method == "adamw":
        return [adamw([matrices, *plain], config)]
    return [Muon([matrices], config.matrices), adamw(plain, config)]


def adamw(groups: list[dict[str, Any]], config: OptimizerConfig) -> AdamW:
    return AdamW(groups, betas=config.betas, eps=config.eps, fused=True)


def set_learning_rate(optimizers: list[Optimizer], factor: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor


@final
class Muon(torch.optim.Muon):
    """torch's Muon. On a CPU the Newton-Schulz iteration runs in fp32: torch's own, in bf16, takes 20 times longer."""

    def __init__(self, groups: list[dict[str, Any]], config: MatricesConfig) -> None:
        super().__init__(
            groups, momentum=config.momentum, adjust_lr_fn=config.adjust_lr, ns_coefficients=MUON_COEFFICIENTS
        )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if any(parameter.is_cuda for group in self.param_groups for parameter in group["params"]):
            return super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: Tensor, gradient: Tensor, group: Mapping[str, Any]) -> None:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        momentum = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        update = orthogonal(gradient.lerp(momentum, group["momentum"]))
        rows, columns = parameter.shape
        original = group["adjust_lr_fn"] == "original"
        scale = math.sqrt(max(1, rows / columns)) if original else 0.2 * math.sqrt(max(rows, columns))
        parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"] * scale)


def orthogonal(matrix: Float[Tensor, "row column"], iterations: int = 5) -> Float[Tensor, "row column"]:
    """About U V^T of the matrix's U S V^T: x <- a x + (b g + c g g) x with g = x x^T, in the matrix's own dtype."""
    a, b, c = MUON_COEFFICIENTS
    tall = matrix.size(0) > matrix.size(1)
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(iterations):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
