"""The kernel of Liger as one more implementation, for the reads that it covers.

Whole values are keys. It reads one stacked tensor, so the sources are copied into one; it takes one query, so several
are several reads; earlier versions read the first 32 sources in silence, so that more are refused. Its gradients of
query and gain are added by atomics and do not repeat to the bit. It gives no lse: it is NaN here, and what is read so
cannot be merged.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from depthroute.errors import ArgumentError
from depthroute.ops.checks import check_covered, installed
from depthroute.ops.result import Attended, without_lse

IMPL, PACKAGE = "liger", "liger-kernel"
MOST_SOURCES = 32


def attend(
    queries: Float[Tensor, "query rank"],
    keys: Sequence[Float[Tensor, "*token rank"]] | None,
    values: Sequence[Float[Tensor, "*token width"]],
    prior: Sequence[float] | Float[Tensor, " source"] | None,
    before: Attended | None,
    *,
    eps: float,
    gain: Float[Tensor, " rank"] | None,
) -> Attended:
    peer = installed(IMPL, "liger_kernel.transformers.functional", PACKAGE)
    width = values[0].shape[-1]
    check_covered(
        IMPL,
        {
            "keys of their own": keys is not None,
            "keys that are a part of the value": queries.shape[1] != width,
            "a prior": prior is not None,
            "a read that goes on from another": before is not None,
            f"{values[0].dtype} sources": values[0].dtype == torch.float64,
            f"{len(values)} sources, only up to {MOST_SOURCES}": len(values) > MOST_SOURCES,
            "deterministic gradients": torch.are_deterministic_algorithms_enabled(),
            f"sources on {values[0].device}, only on a GPU": values[0].device.type != "cuda",
        },
    )
    with torch.autocast(values[0].device.type, enabled=False):
        weight = torch.ones(width, device=values[0].device) if gain is None else gain
        # The kernel asks for [source, batch, token, width].
        stacked = torch.stack([value.reshape(1, -1, width) for value in values])
        mixtures = [peer.liger_attn_res(stacked, query, weight, eps) for query in queries]
        return without_lse(torch.stack(mixtures).view(len(queries), *values[0].shape))


def merge(first: Attended, second: Attended) -> Attended:
    raise ArgumentError(f"impl '{IMPL}' gives no lse to merge by; use another, such as 'reference'")
