"""How many parameters a model has, counted on a model that holds no numbers."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from depthroute.model.transformer import ModelConfig, Transformer


class Count(NamedTuple):
    total: int | None
    """None where the vocabulary is not known yet."""
    non_embedding: int
    """All but the token embedding and the head."""


def parameters(raw: Mapping[str, Any]) -> Count:
    config = ModelConfig.parse(raw, "model")
    with torch.device("meta"):
        model = Transformer(config if config.vocab else config.model_copy(update={"vocab": 1}))
    total = sum(parameter.numel() for parameter in model.parameters())
    outside = sum(module.weight.numel() for module in (model.embed_tokens, model.lm_head) if module is not None)
    return Count(total if config.vocab else None, total - outside)
