"""Sources that keep their places from one pass to the next: for a model that generates, a token at a time.

    values, keys    one tensor a source, written over by every pass; the live sum grows in place
    writes          one a sublayer, and one for the embedding, prepared once
    reads           one a site, prepared once, and again when a parameter is another one or has changed

Of one token, a read is a few microseconds of arithmetic. What takes long is to find out, each time, what lies where.
"""

import functools
from collections.abc import Callable
from typing import Any, cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from depthroute.ops import prepared_write, remembered
from depthroute.residuals import Depth, Fed, attnres
from depthroute.residuals.attnres.routes import KINDS, Read
from depthroute.watched import hooked_everywhere, watched

EMBEDDING = -1
"""In place of the site whose sublayer gave the output."""

TABLES = ("_forward_hooks", "_forward_pre_hooks", "_modules", "_buffers", "_parameters")
"""Of a module's: who hooks it, what it holds, and the parameters last."""


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
        self.reads: dict[int, Callable[[], Tensor]] = {}
        self.sites: dict[int, Read] = {}
        self.watched: set[int] = set()
        self.tables: list[dict[str, Any]] = []
        self.parameters: list[nn.Parameter] = []
        self.marks: list[Any] = []
        self.unchanged: Callable[[], bool] = lambda: False

    def look(self) -> None:
        """Forget prepared reads, and note which are watched, if a read, its hooks or a parameter is another or changed.

        What changes after a pass has begun, the next one sees.
        """
        self.everywhere = hooked_everywhere()
        if self.found() == self.marks and self.unchanged():
            return
        self.reads.clear()
        sites = {int(name): read for name, read in self.residual.reads.items()}
        self.sites = cast("dict[int, Read]", sites)
        self.watched = {site for site, read in sites.items() if not plain(read, self.residual.impl)}
        self.tables = [*map(vars, sites.values()), *(vars(read)[name] for name in TABLES for read in sites.values())]
        self.marks = self.found()
        self.unchanged = remembered(self.parameters, impl=self.residual.impl)

    def found(self) -> list[Any]:
        """What differs where something is another. Every token fetches it from afar: touch little."""
        reads, sites = self.residual.reads.values(), len(self.sites)
        own, parameters = self.tables[:sites], self.tables[len(self.tables) - sites :]
        # Held, so that no other gets the id of one that is gone.
        self.parameters = [one for table in parameters for one in table.values() if one is not None]
        ids = [*map(id, reads), *map(type, reads), *map(id, self.parameters), *map(Tensor.data_ptr, self.parameters)]
        return [*ids, *map(len, self.tables), *((one.get("eps"), one.get("impl")) for one in own)]

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

    def read(self, state: tuple[()], site: int) -> Fed:
        if site == 0:
            return (self.embedding,)
        if self.everywhere or site in self.watched:  # who hooks a read may change what it is given, and keep it
            return self.sites[site](*self.visible(site, torch.clone))
        if site not in self.reads:
            self.reads[site] = self.sites[site].prepared(*self.visible(site))
        return self.reads[site]()

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


def plain(read: nn.Module, impl: str) -> bool:
    """Whether it reads as its class does, by its parameters and nothing else, with this implementation."""
    own = vars(read)
    strange = (hasattr(type(read), name) or isinstance(value, Tensor) for name, value in own.items())
    return type(read) in KINDS and own["impl"] == impl and not (watched(read) or own["_buffers"] or any(strange))
