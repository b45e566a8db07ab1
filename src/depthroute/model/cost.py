"""What a model costs: the sums of what its residual, its sublayers and its head report of themselves."""

from typing import NamedTuple

import torch

from depthroute.model.sublayers import Attention, Mlp
from depthroute.model.transformer import ModelConfig, Transformer


class ForwardFlops(NamedTuple):
    """Forward FLOPs a token by part; a product and its sum are two."""

    linear: int
    """C: the weights of the sublayers, key rows apart."""
    attention: int
    head: int
    score: int
    mix: int
    """score + mix is R, the reads of depth."""
    key_projection: int
    """K: all projections to keys."""

    @property
    def added_percent(self) -> float:
        """The papers' figure: 100 (R + K) / C, which leaves attention scores and the head out of the Transformer."""
        return 100 * (self.score + self.mix + self.key_projection) / self.linear


def forward_flops(config: ModelConfig, tokens: int) -> ForwardFlops:
    """FLOPs of one token, on average over a causal sequence of `tokens`. Nothing is computed, nothing allocated."""
    with torch.device("meta"):
        model = Transformer(config)
    parts = []
    for _, sublayer in model.sublayers():
        assert isinstance(sublayer, Attention | Mlp)
        parts.append(sublayer.flops(tokens))
    reads = model.residual.flops()
    return ForwardFlops(
        linear=sum(part.linear for part in parts),
        attention=sum(part.attention for part in parts),
        head=2 * model.embed_tokens.weight.numel(),
        score=reads.score,
        mix=reads.mix,
        key_projection=reads.key_projection + sum(part.key_rows for part in parts),
    )


def training_flops(config: ModelConfig, tokens: int) -> int:
    """FLOPs of one token in training: a forward pass, and twice as many for its backward pass."""
    return 3 * sum(forward_flops(config, tokens))
