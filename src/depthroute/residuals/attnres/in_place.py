"""Sources that keep their places from one pass to the next: for a model that generates, a token at a time.

    values, keys    one tensor a source, written over by every pass; the live sum grows in place
    writes          one a sublayer, and one for the embedding, prepared once
    reads           one a site, prepared once, and again when a parameter is another one or has changed

Of one token, a read is a few microseconds of arithmetic. What takes long is to find out, each time, what lies where.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import (
    _has_any_global_hook as hooked_everywhere,  # pyright: ignore[reportPrivateUsage]
)

from depthroute.ops import prepared_write
from depthroute.residuals import Depth, attnres
from depthroute.residuals.attnres.routes import Read

EMBEDDING = -1
"""In place of the site whose sublayer gave the output."""


@final
class InPlace(Depth[tuple[()]]):
    """The residual's reads and writes. The state is here, not in what it returns; what it feeds is new.

    They are the ordinary direct ones to the bit, but for emitted keys, whose norm `native` sums in another order.
    """

    def __init__(self, residual: "attnres.AttentionResidual", embedding: Float[Tensor, "*token width"]) -> None:
        self.residual, layout = residual, residual.layout
        self.embedding = embedding
        self.newest = [len(counts) - 1 for counts in layout.counts]
        keyed = residual.embedding_key is not None or residual.coordinates is not None
        self.values = [place(embedding, residual.width) for _ in layout.counts[-1]]
        self.keys = [place(embedding, residual.rank) for _ in layout.counts[-1] if keyed]
        self.writes = {site: self.writer(site) for site in range(EMBEDDING, len(layout.counts) - 1)}
        self.reads: dict[int, Callable[[], Sequence[Tensor]]] = {}
        self.sites: dict[int, Read] = {}
        self.watched: set[int] = set()
        self.parameters: list[nn.Parameter] = []
        self.versions: list[tuple[int, ...]] = []

    def look(self) -> None:
        """Note which reads are watched, and forget prepared ones if a read or parameter is another, or has changed.

        As torch counts changes: not those of parameters made in inference mode, nor those that `.data` hides.
        """
        sites = list(self.residual.reads.values())
        every = (read._parameters.values() for read in sites)  # pyright: ignore[reportPrivateUsage]
        found = [one for some in every for one in some if one is not None]
        versions = [*((id(read),) for read in sites), *map(version, found)]
        everywhere = bool(hooked_everywhere())  # pyright: ignore[reportUnknownArgumentType]
        self.watched = {site for site, read in enumerate(sites, start=1) if everywhere or watched(read)}
        if versions != self.versions:
            self.reads.clear()
            self.sites = dict(enumerate(cast("list[Read]", sites), start=1))
            self.parameters, self.versions = found, versions

    def writer(self, site: int) -> Callable[[Tensor, Tensor | None], None]:
        residual, newest = self.residual, self.newest[site + 1]
        opens = site == EMBEDDING or site in residual.opens
        to = functools.partial(prepared_write, opens=opens, eps=residual.config.eps, impl=residual.impl)
        if residual.coordinates is None:
            return to(self.values[newest], self.keys[newest] if self.keys else None)
        # What is chosen from an output is written like a value.
        write, choose = (to(places[newest], None) for places in (self.values, self.keys))

        def write_both(value: Tensor, _: Tensor | None) -> None:
            write(value, None)
            choose(attnres.chosen(value, cast(Tensor, residual.coordinates)), None)

        return write_both

    def visible(self, site: int, source: Callable[[Tensor], Tensor] = lambda one: one) -> "attnres.Visible":
        """What can be read at the site: the places themselves, or what is made of them."""
        places = (self.values[: self.newest[site] + 1], self.keys[: self.newest[site] + 1])
        values, keys = (tuple(map(source, some)) for some in places)
        return self.residual.visible(attnres.State(values, keys), site)

    def start(self, embedding: Float[Tensor, "*token width"]) -> tuple[()]:
        self.look()
        self.embedding = embedding
        projection = self.residual.embedding_key
        return self.write((), EMBEDDING, embedding, None if projection is None else projection(embedding))

    def read(self, state: tuple[()], site: int) -> tuple[Float[Tensor, "*token width"], ...]:
        if site == 0:
            return (self.embedding,)
        read = self.sites[site]
        if site in self.watched:  # who hooks a read may change what it is given, and keep it
            return read(*self.visible(site, torch.clone))
        if site not in self.reads:
            self.reads[site] = read.prepared(*self.visible(site))
        return read.feed_each(self.reads[site]())

    def write(
        self,
        state: tuple[()],
        site: int,
        value: Float[Tensor, "*token width"],
        key: Float[Tensor, "*token rank"] | None,
    ) -> tuple[()]:
        self.writes[site](value, key)
        return state


def place(like: Float[Tensor, "*token width"], coordinates: int) -> Tensor:
    return like.new_empty((*like.shape[:-1], coordinates))


def version(one: nn.Parameter) -> tuple[int, ...]:
    counted = 0 if one.is_inference() else one._version  # pyright: ignore[reportPrivateUsage]
    return id(one), one.data_ptr(), counted


def watched(read: nn.Module) -> bool:
    """Whether calling the read may be more than its forward: it has hooks, or modules, such as parametrisations."""
    own: dict[str, Any] = vars(read)
    return bool(own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_modules"]) or "forward" in own
