"""What the reads of a model cost, from how many sources each weighs for how many routes.

    score = 2 r S Q,  mix = 2 d S Q                                     FLOPs a token of a read: S sources, Q routes
    direct = sum over sites of  S (d + e) + Q d                         coordinates; e = r if keys lie beside, else 0
    two-phase = sum over blocks of  F (d + e)                           the F finished sources, read once a block
              + Q d at its first site                                   phase 1 has the answer
              + 3 Q d + d + e, and 2 Q numbers, at every later one      partial mixtures and their lse are written and
                                                                        read, the newest source read, Q d written

The first block has nothing but the embedding ahead and reads directly; the readout is a site of the last block.

Attention Residuals, arXiv 2603.15031, gives the schedule; Low-Rank Attention Residuals, 2607.09694, the FLOPs.
"""

from collections.abc import Mapping
from typing import NamedTuple

from depthroute.residuals import ReadBytes, ReadFlops, RouteFlops
from depthroute.residuals.attnres.sources import Layout

NUMBER = 4
"""Bytes of a log-normaliser."""


class Shape(NamedTuple):
    """A model's reads: widths in coordinates, and by site the routes that are read and the tensors that are fed."""

    layout: Layout
    width: int
    rank: int
    beside: bool
    """Whether keys are tensors of their own."""
    routes: Mapping[int, tuple[str, ...]]
    fed: Mapping[int, int]


def flops(shape: Shape, key_projection: int) -> ReadFlops:
    scored: dict[str, int] = {}
    for site, routes in shape.routes.items():
        for route in routes:
            scored[route] = scored.get(route, 0) + len(shape.layout.counts[site])
    by_route = {name: RouteFlops(2 * shape.rank * n, 2 * shape.width * n) for name, n in scored.items()}
    return ReadFlops(by_route, key_projection)


def read_bytes(shape: Shape, element: int) -> ReadBytes:
    source = (shape.width + (shape.rank if shape.beside else 0)) * element
    mixture = shape.width * element
    sources = [len(counts) for counts in shape.layout.counts]
    direct = two_phase = 0
    kept = len(sources) * source
    for site, routes in shape.routes.items():
        written = len(routes) * mixture
        at_once = sources[site] * source + written
        joined = 3 * written + 2 * len(routes) * NUMBER + source
        direct += at_once
        # Of a later block, the first site's share is all that its sites read ahead.
        two_phase += at_once if shape.layout.blocks[site].start in (0, site) else joined
        kept += shape.fed[site] * mixture + len(routes) * NUMBER
    fed = (1, *shape.fed.values())
    return ReadBytes(direct, two_phase, kept, tuple(count * source for count in sources), fed)
