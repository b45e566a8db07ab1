"""The kernel of flash-linear-attention as one more implementation, for the reads that it covers.

Whole values are keys, and rows are aligned to 16 bytes. It takes one query, so several are several reads. It
gives no lse: it is NaN here, and what is read so cannot be merged.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from depthroute.errors import ArgumentError
from depthroute.ops.checks import check_covered, installed
from depthroute.ops.result import Attended, without_lse

IMPL, PACKAGE = "fla", "flash-linear-attention"


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
    peer = installed(IMPL, "fla.ops.attnres", PACKAGE)
    width = values[0].shape[-1]
    check_covered(
        IMPL,
        {
            "keys of their own": keys is not None,
            "keys that are a part of the value": queries.shape[1] != width,
            "a prior": prior is not None,
            "a read that goes on from another": before is not None,
            f"{values[0].dtype} sources": values[0].dtype == torch.float64,
            "rows that are not aligned to 16 bytes": width * values[0].itemsize % 16 != 0
            or any(value.data_ptr() % 16 != 0 for value in values),
            f"sources on {values[0].device}, only on a GPU": values[0].device.type != "cuda",
        },
    )
    with torch.autocast(values[0].device.type, enabled=False):
        weight = torch.ones(width, device=values[0].device) if gain is None else gain
        mixtures = [peer.fused_attnres(query, list(values), weight, rms_eps=eps) for query in queries]
        return without_lse(torch.stack(mixtures))


def merge(first: Attended, second: Attended) -> Attended:
    raise ArgumentError(f"impl '{IMPL}' gives no lse to merge by; use another, such as 'reference'")
