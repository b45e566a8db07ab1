"""From a batch to the two losses, kept apart: the NLL is pure cross-entropy, the z-loss a penalty beside it."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from depthroute.data.batches import Batch
from depthroute.model.transformer import Transformer


class Tokens(NamedTuple):
    """A batch as tensors on the device."""

    tokens: Int[Tensor, "batch token"]
    targets: Int[Tensor, "batch token"]
    documents: Int[Tensor, "batch token"]


def micro_batches(batch: Batch, count: int, device: torch.device) -> Iterator[Tokens]:
    """The batch as `count` equal parts on the device."""
    rows = len(batch.tokens) // count
    for start in range(0, len(batch.tokens), rows):
        yield Tokens(*(torch.from_numpy(array[start : start + rows]).to(device) for array in batch))


def losses(
    model: Transformer, batch: Tokens, z_loss: float, precision: str
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Mean NLL in nats a token, and `z_loss` times the mean squared log-normaliser; both in fp32."""
    documents = batch.documents if model.config.document_mask else None
    with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=precision == "bf16"):
        logits = model(batch.tokens, documents)
    logits = logits.float()
    log_normaliser = logits.logsumexp(-1)
    target = logits.gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1)
    return (log_normaliser - target).mean(), z_loss * log_normaliser.square().mean()
