"""What a model costs: the sums of what its residual, its sublayers and its head report of themselves.

docs/cost.md states the conventions. Nothing is computed and nothing allocated: the model is built without numbers.
"""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from depthroute.errors import ArgumentError
from depthroute.model.sublayers import NUMBER, Attention, Mlp
from depthroute.model.transformer import ModelConfig, Transformer
from depthroute.residuals import ReadFlops


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

    @property
    def added_percent_of_all(self) -> float:
        """100 (R + K) / (C + attention + head): what a forward pass of the PreNorm network grows by."""
        whole = self.linear + self.attention + self.head
        return 100 * (self.score + self.mix + self.key_projection) / whole


@dataclass(frozen=True)
class Cost:
    """One model at one length. Bytes are a token's, where a coordinate takes `element` bytes."""

    length: int
    element: int
    stages: int
    parameters: dict[str, int]
    """By part."""
    flops: ForwardFlops
    routes: dict[str, dict[str, int]]
    """The reads' score and mix by route."""
    read_bytes: dict[str, int]
    """direct and two_phase, of one forward pass."""
    source_bytes: int
    """The sources alive at once, at most."""
    kept_bytes: dict[str, int]
    """Of activations that a forward pass keeps for its backward, by part."""
    sent_bytes: dict[str, int]
    """Over all boundaries between `stages` pipeline stages, forward: what the running sum takes, and what is extra."""

    def plain(self) -> dict[str, Any]:
        """As JSON holds it, with totals and both percentages."""
        return {
            **asdict(self),
            "flops": self.flops._asdict(),
            "parameters": {**self.parameters, "total": sum(self.parameters.values())},
            "kept_bytes": {**self.kept_bytes, "total": sum(self.kept_bytes.values())},
            "added_percent": self.flops.added_percent,
            "added_percent_of_all": self.flops.added_percent_of_all,
        }


def forward_flops(config: ModelConfig, tokens: int) -> ForwardFlops:
    """FLOPs of one token, on average over a causal sequence of `tokens`."""
    model = shell(config)
    return flops_of(model, tokens, model.residual.flops())


def flops_of(model: Transformer, tokens: int, reads: ReadFlops) -> ForwardFlops:
    parts = [sublayer.flops(tokens) for sublayer in sublayers(model)]
    return ForwardFlops(
        linear=sum(part.linear for part in parts),
        attention=sum(part.attention for part in parts),
        head=2 * model.embed_tokens.weight.numel(),
        score=sum(route.score for route in reads.routes.values()),
        mix=sum(route.mix for route in reads.routes.values()),
        key_projection=reads.key_projection + sum(part.key_rows for part in parts),
    )


def training_flops(config: ModelConfig, tokens: int) -> int:
    """FLOPs of one token in training: a forward pass, and twice as many for its backward pass."""
    return 3 * sum(forward_flops(config, tokens))


def cost(config: ModelConfig, tokens: int, *, element: int = 2, stages: int = 4) -> Cost:
    """Everything that is counted of one model, for causal sequences of `tokens`.

    Args:
        element: bytes of a coordinate: 2 for bf16, 4 for fp32.
        stages: of a pipeline that is cut between layers, in parts as near to equal as they can be.

    Raises:
        ArgumentError: more stages than layers.
    """
    if not 1 <= stages <= config.layers:
        raise ArgumentError(f"stages: {stages} pipeline stages for {config.layers} layers; give 1 to {config.layers}")
    model = shell(config)
    reads, weighed = model.residual.flops(), model.residual.bytes(element)
    kept = {"attention": 0, "mlp": 0}
    for site, sublayer in enumerate(sublayers(model)):
        inputs = weighed.fed[site]
        part = "attention" if isinstance(sublayer, Attention) else "mlp"
        kept[part] += sublayer.kept(element, inputs) + inputs * NUMBER
    kept["head"] = config.width * element + NUMBER + NUMBER * model.embed_tokens.num_embeddings
    boundaries = [2 * (config.layers * stage // stages) for stage in range(1, stages)]
    summed = len(boundaries) * config.width * element
    return Cost(
        length=tokens,
        element=element,
        stages=stages,
        parameters=parameters(model),
        flops=flops_of(model, tokens, reads),
        routes={name: route._asdict() for name, route in reads.routes.items()},
        read_bytes={"direct": weighed.direct, "two_phase": weighed.two_phase},
        source_bytes=max(weighed.state),
        kept_bytes={"depth": weighed.kept, **kept},
        sent_bytes={"running_sum": summed, "extra": sum(weighed.state[site] for site in boundaries) - summed},
    )


def parameters(model: Transformer) -> dict[str, int]:
    """Parameters by part; a head tied to the embedding counts as none."""
    found: dict[str, int] = dict.fromkeys(
        ("embedding", "head", "attention", "mlp", "norms", "depth reads", "key projections"), 0
    )
    for name, parameter in model.named_parameters():
        found[part_of(name)] += parameter.numel()
    for sublayer in sublayers(model):
        rows = sublayer.flops(1).key_rows // 2
        found["attention" if isinstance(sublayer, Attention) else "mlp"] -= rows
        found["key projections"] += rows
    return found


def part_of(name: str) -> str:
    """The part that a parameter belongs to. A residual's matrix projects keys; all else of it belongs to its reads."""
    first = name.partition(".")[0]
    if first == "residual":
        return "key projections" if name.endswith(".weight") else "depth reads"
    if "norm" in name:
        return "norms"
    if first in ("embed_tokens", "lm_head"):
        return "embedding" if first == "embed_tokens" else "head"
    return "attention" if ".self_attn." in name else "mlp"


def sublayers(model: Transformer) -> list[Attention | Mlp]:
    found: list[Attention | Mlp] = []
    for _, sublayer in model.sublayers():
        assert isinstance(sublayer, Attention | Mlp)
        found.append(sublayer)
    return found


def shell(config: ModelConfig) -> Transformer:
    with torch.device("meta"):
        return Transformer(config)
