"""Sources that keep their places from one pass to the next: for a model that generates, a token at a time.

    values, keys    one tensor a source, written over by every pass; the live sum grows in place
    reads           one a site, prepared once, and again when a parameter has changed
    writes          one a site, prepared once

Of one token, a read is a few microseconds of arithmetic. What takes long is to find out, each time, what lies where.
"""

import functools
from collections.abc import Callable, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from depthroute.ops import prepared_write
from depthroute.residuals import Depth, attnres


@final
class InPlace(Depth[tuple[()]]):
    """The residual's reads and writes. The state is here, not in what it returns; what it feeds is new.

    They are the residual's own to the bit, but for emitted keys, whose norm `native` sums in another order.
    """

    def __init__(self, residual: "attnres.AttentionResidual", embedding: Float[Tensor, "*token width"]) -> None:
        values, keys, _ = residual.start(embedding)
        self.residual, layout = residual, residual.layout
        self.embedding = embedding
        self.newest = [len(counts) - 1 for counts in layout.counts]
        self.values = [place_like(values[0]) for _ in layout.counts[-1]]
        self.keys = [place_like(key) for key in keys for _ in layout.counts[-1]]
        self.sites = {site: residual.at(site) for site in range(1, len(layout.counts))}
        self.writes = {site: self.writer(site) for site in range(len(self.sites))}
        # Those made in inference mode do not count their changes.
        self.parameters = [one for one in residual.parameters() if not one.is_inference()]
        self.prepare()

    def writer(self, site: int) -> Callable[[Tensor, Tensor | None], None]:
        residual, newest = self.residual, self.newest[site + 1]
        to = functools.partial(
            prepared_write, opens=site in residual.opens, eps=residual.config.eps, impl=residual.impl
        )
        coordinates = residual.coordinates
        if coordinates is None:
            return to(self.values[newest], self.keys[newest] if self.keys else None)
        # What is chosen from an output is written like a value.
        write, choose = (to(places[newest], None) for places in (self.values, self.keys))

        def write_both(value: Tensor, _: Tensor | None) -> None:
            write(value, None)
            choose(value.index_select(-1, coordinates), None)

        return write_both

    def prepare(self) -> None:
        self.versions = versions(self.parameters)
        self.reads = {site: read.prepared(*self.visible(site)) for site, read in self.sites.items()}

    def visible(self, site: int, source: Callable[[Tensor], Tensor] = lambda place: place) -> "attnres.Visible":
        """What can be read at the site: the places themselves, or what is made of them."""
        places = (self.values[: self.newest[site] + 1], self.keys[: self.newest[site] + 1])
        values, keys = (tuple(map(source, some)) for some in places)
        return self.residual.visible(attnres.State(values, keys), site)

    def start(self, embedding: Float[Tensor, "*token width"]) -> tuple[()]:
        if versions(self.parameters) != self.versions:
            self.prepare()
        values, keys, _ = self.residual.start(embedding)
        self.embedding = embedding
        for places, sources in ((self.values, values), (self.keys, keys)):
            for source in sources:
                places[0].copy_(source)
        return ()

    def read(self, state: tuple[()], site: int) -> tuple[Float[Tensor, "*token width"], ...]:
        if site == 0:
            return (self.embedding,)
        read = self.sites[site]
        if read._forward_hooks or read._forward_pre_hooks:  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
            # Whoever hooks a read may change what it is given, and keep it.
            return read(*self.visible(site, torch.clone))
        return read.feed(self.reads[site]())

    def write(
        self,
        state: tuple[()],
        site: int,
        value: Float[Tensor, "*token width"],
        key: Float[Tensor, "*token rank"] | None,
    ) -> tuple[()]:
        self.writes[site](value, key)
        return state


def place_like(source: Tensor) -> Tensor:
    return torch.empty_like(source, memory_format=torch.contiguous_format)


def versions(parameters: Sequence[Tensor]) -> list[int]:
    """What changes whenever one of them does."""
    return [one._version for one in parameters]  # pyright: ignore[reportPrivateUsage]
