"""What can be read: how the outputs of the sublayers are summed into sources.

    full                 the embedding, then every sublayer output                               2603.15031
    blocks: N            the embedding, then sums over N runs of sublayers, near-equal in length  2603.15031, 2607.09694
    block_layers: S      a block ends after every S layers                                       Kimi K3's code
    block_sublayers: S   a block ends after every S sublayers                                    2603.15031's listing

The embedding is always its own source. The unfinished block's sum, the live sum, can be read once it has any output.
`full` is blocks of one sublayer.
"""

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Annotated, final

from pydantic import PositiveInt, SerializeAsAny

from depthroute.schema import Choice, among


class Sources(Choice, ABC):
    @abstractmethod
    def ends(self, layers: int) -> list[int]:
        """After which sublayers, counted from 1, a block ends. The last is 2 * layers."""


@final
class Full(Sources):
    def ends(self, layers: int) -> list[int]:
        return ends_after_every(1, layers)


@final
class Blocks(Sources):
    blocks: PositiveInt

    def ends(self, layers: int) -> list[int]:
        blocks = min(self.blocks, 2 * layers)
        return [-(-2 * layers * number // blocks) for number in range(1, blocks + 1)]


@final
class BlockLayers(Sources):
    block_layers: PositiveInt

    def ends(self, layers: int) -> list[int]:
        return ends_after_every(2 * self.block_layers, layers)


@final
class BlockSublayers(Sources):
    block_sublayers: PositiveInt

    def ends(self, layers: int) -> list[int]:
        return ends_after_every(self.block_sublayers, layers)


def ends_after_every(sublayers: int, layers: int) -> list[int]:
    """A block ends after every so many sublayers; the remainder is in the last block."""
    return [*range(sublayers, 2 * layers, sublayers), 2 * layers]


AnySources = Annotated[SerializeAsAny[Sources], among(Full, Blocks, BlockLayers, BlockSublayers)]


@final
class Layout:
    """Where the blocks of a model lie.

    opens:  the sites whose sublayer begins a block.
    counts: for every site 0 .. 2L, how many outputs each visible source sums; the embedding counts as one.
    blocks: for every site, the sites that share its finished sources: those of its block, the readout with the last.
    single: whether every block is one output.
    """

    def __init__(self, sources: Sources, layers: int) -> None:
        ends = sources.ends(layers)
        self.opens = frozenset([0, *ends[:-1]])
        self.layers, self.single = layers, len(ends) == 2 * layers
        visible = [1]
        self.counts = [tuple(visible)]
        for site in range(2 * layers):
            if site in self.opens:
                visible.append(1)
            else:
                visible[-1] += 1
            self.counts.append(tuple(visible))
        starts = [*sorted(self.opens), len(self.counts)]
        self.blocks = [range(start, stop) for start, stop in pairwise(starts) for _ in range(start, stop)]

    def live(self, site: int) -> bool:
        """Whether the site's last source is the sum of a block that is not finished."""
        return site not in self.opens and site < 2 * self.layers

    def names(self, site: int) -> tuple[str, ...]:
        """The sources visible at the site: sublayers by layer (from 0) or blocks (from 1)."""
        outputs = range(len(self.counts[site]) - 1)
        if self.single:
            return ("embedding", *(f"{'mlp' if output % 2 else 'attention'} {output // 2}" for output in outputs))
        names = [f"block {output + 1}" for output in outputs]
        return ("embedding", *names[:-1], "live sum") if self.live(site) else ("embedding", *names)
