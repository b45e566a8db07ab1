"""The NLL of held-out text: pure cross-entropy over the same fixed windows for every seed and arm."""

import math
from typing import NamedTuple

import torch

from depthroute.config import Config
from depthroute.data.batches import evaluation_batches
from depthroute.data.shards import Part
from depthroute.model.transformer import Transformer
from depthroute.train.losses import losses, micro_batches
from depthroute.train.stopping import Stop


class Evaluation(NamedTuple):
    nll: float
    """Nats a token."""
    bits_per_byte: float
    tokens_evaluated: int


def evaluation_steps(config: Config) -> set[int]:
    """The steps after which to evaluate: the first that reach each milestone, and the last."""
    every = config.evaluation.every
    milestones = range(every, config.tokens + 1, every) if every else config.evaluation.milestones
    return {-(-tokens // config.tokens_per_step) for tokens in milestones} | {config.steps}


@torch.no_grad()
def evaluate(model: Transformer, part: Part, config: Config, stop: Stop) -> Evaluation:
    """Evaluate the part, or its first `evaluation.tokens` tokens. Left by `StopRequested` between two batches."""
    device = next(model.parameters()).device
    total, tokens = 0.0, 0
    batches = evaluation_batches(
        part, length=config.length, batch=config.batch // config.accumulation, tokens=config.evaluation.tokens
    )
    for batch in batches:
        stop.check()
        (whole,) = micro_batches(batch, 1, device)
        nll, _ = losses(model, whole, 0.0, config.precision)
        total += nll.item() * batch.targets.size
        tokens += batch.targets.size
    nll = total / tokens
    return Evaluation(nll, nll * part.tokens / part.bytes / math.log(2), tokens)
