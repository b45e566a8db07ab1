"""Gradient norms by depth and part: || d mean NLL / d parameters ||, the mean over the whole text.

The gradients of all batches are summed before the norm is taken, so that it is the norm of the text's gradient and not
the mean of noisier norms. Nothing is left in the parameters' `.grad`.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

import torch

from depthroute.model.cost import part_of
from depthroute.model.transformer import Transformer
from depthroute.probe.likelihood import token_nll
from depthroute.probe.subject import Tokens


def gradient_norms(
    model: Transformer, batches: Iterable[Tokens], progress: Callable[[int], None]
) -> list[dict[str, Any]]:
    """One row a layer and part, the embedding, head and readout without a layer. `progress` is told tokens done."""
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    total = {name: torch.zeros_like(parameter) for name, parameter in named.items()}
    tokens = 0
    for batch in batches:
        logits = model(batch.tokens, batch.documents if model.config.document_mask else None)
        nll = token_nll(logits, batch.targets).sum()
        found = torch.autograd.grad(nll, list(named.values()), allow_unused=True)
        for name, gradient in zip(named, found, strict=True):
            if gradient is not None:
                total[name] += gradient
        tokens += batch.targets.numel()
        progress(tokens)
    squares: dict[tuple[int | None, str], float] = {}
    for name, gradient in total.items():
        place = (layer_of(name, model.config.layers), part_of(name))
        squares[place] = squares.get(place, 0.0) + (gradient.double() / tokens).square().sum().item()
    ordered = sorted(squares, key=lambda place: (place[1], -1 if place[0] is None else place[0]))
    return [{"layer": layer, "part": part, "norm": squares[layer, part] ** 0.5} for layer, part in ordered]


def layer_of(name: str, layers: int) -> int | None:
    """The layer of a parameter, by the number in its name: of a layer, or of a site in the residual."""
    number = re.search(r"\.(\d+)\.", name)
    if number is None:
        return None
    layer = int(number[1]) // 2 if name.startswith("residual.") else int(number[1])
    return layer if layer < layers else None
