"""The kernels of the package fast-attnres as one more implementation, for the reads that they cover.

Up to 16 queries over up to 129 sources of a width up to 8192, scored by the values' last coordinates. A gain is folded
into the query, and the query is rounded to the dtype of the sources, which is what the kernels take. From version 2 on
they need a GPU. They give no lse: it is NaN here, and what is read so cannot be merged.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from depthroute.errors import ArgumentError
from depthroute.ops.checks import check_covered, installed
from depthroute.ops.result import Attended, without_lse

IMPL, PACKAGE = "fast_attnres", "fast-attnres"


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
    peer = installed(IMPL, "attnres", PACKAGE)
    several = len(queries) > 1
    check_covered(
        IMPL,
        {
            "keys of their own": keys is not None,
            "a prior": prior is not None,
            "a read that goes on from another": before is not None,
            f"{values[0].dtype} sources, only bf16": values[0].dtype != torch.bfloat16,
            f"{len(values)} sources, only up to 129": len(values) > 129,
            f"{len(queries)} queries, only up to 16": len(queries) > 16,
            f"width {values[0].shape[-1]}, only up to 8192": values[0].shape[-1] > 8192,
            "an eps of 0": eps == 0,
            # Its first version has a reference beside the kernels, for a CPU.
            f"sources on {values[0].device}, only on a GPU": values[0].device.type != "cuda"
            and not hasattr(peer, "reference_attnres"),
            "several queries before version 2": several and not hasattr(peer, "attnres_multi"),
        },
    )
    with torch.autocast(values[0].device.type, enabled=False):
        folded = (queries.float() if gain is None else queries.float() * gain.float()).to(values[0].dtype)
        if several:
            return without_lse(peer.attnres_multi(list(values), folded, eps=eps))
        return without_lse(peer.attnres(list(values), folded[0], eps=eps).unsqueeze(0))


def merge(first: Attended, second: Attended) -> Attended:
    raise ArgumentError(f"impl '{IMPL}' gives no lse to merge by; use another, such as 'reference'")
