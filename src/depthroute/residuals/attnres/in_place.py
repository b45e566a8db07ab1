"""Sources that keep their places from one pass to the next: for a model that generates, a token at a time.

    values, keys    one tensor a source, written over by every pass; the live sum grows in place
    reads           one a site, prepared once

Of one token, a read is a few microseconds of arithmetic. What takes long is to find out, each time, what lies where.
"""

from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from depthroute.ops import Attended
from depthroute.residuals import Depth, attnres


@final
class InPlace(Depth[tuple[()]]):
    """The residual's reads and writes, to the bit. The state is here, not in what it returns."""

    def __init__(self, residual: "attnres.AttentionResidual", embedding: Float[Tensor, "*token width"]) -> None:
        values, keys, _ = residual.start(embedding)
        self.residual, layout = residual, residual.layout
        self.opens = layout.opens
        self.newest = [len(counts) - 1 for counts in layout.counts]
        self.values = [torch.empty_like(values[0]) for _ in layout.counts[-1]]
        self.keys = [torch.empty_like(key) for key in keys for _ in layout.counts[-1]]
        self.reads = {site: self.prepared(site) for site in range(1, len(layout.counts))}
        self.feeds = {site: residual.at(site).feed for site in self.reads}

    def prepared(self, site: int) -> Callable[[], Attended]:
        visible = self.newest[site] + 1
        state = attnres.State(tuple(self.values[:visible]), tuple(self.keys[:visible]))
        return self.residual.at(site).prepared(*self.residual.visible(state, site))

    def start(self, embedding: Float[Tensor, "*token width"]) -> tuple[()]:
        values, keys, _ = self.residual.start(embedding)
        for places, sources in ((self.values, values), (self.keys, keys)):
            for source in sources:
                places[0].copy_(source)
        return ()

    def read(self, state: tuple[()], site: int) -> tuple[Float[Tensor, "*token width"], ...]:
        return self.feeds[site](self.reads[site]().mixed) if site else (self.values[0],)

    def write(
        self,
        state: tuple[()],
        site: int,
        value: Float[Tensor, "*token width"],
        key: Float[Tensor, "*token rank"] | None,
    ) -> tuple[()]:
        newest, opens = self.newest[site + 1], site in self.opens
        output = value.to(self.values[0].dtype)
        put(output, self.values[newest], opens)
        if self.keys:
            (row,) = self.residual.key_of(output, key)
            put(row, self.keys[newest], opens)
        return state


def put(output: Tensor, place: Tensor, opens: bool) -> None:
    """As a new source, or onto the live sum."""
    if opens:
        place.copy_(output)
    else:
        place.add_(output)
