"""Attention residuals: a sublayer reads a learned softmax over earlier outputs instead of their sum.

    z_i = < q[t, rho], g * RMSNorm(k_i) > + prior_i,   a = softmax_i(z),   mix[t, rho] = sum_i a_i v_i

at every site `t` for each route `rho`, over the sources visible there. The mixture replaces the residual stream. Three
independent choices give every system of the papers, each in a file of its own:

    sources   what can be read      full, blocks, block_layers, block_sublayers
    keys      what is scored        value, sliced, subset, projected
    routes    who reads             shared, qk_v, q_k_v and the controls

*Attention Residuals*, arXiv 2603.15031; *Low-Rank Attention Residuals*, arXiv 2607.09694; *Role-Decoupled Attention
Residuals*, arXiv 2608.01075. A block's value may be scaled, c^-alpha * sum, and preferred, prior = beta log c, with c
the number of summed outputs (the low-rank paper's code). Queries start at zero: every read is then the mean of its
sources, and with alpha = beta, as in every paper's own system, the network is the PreNorm network.

Queries do not depend on activations. So the reads of a block may be taken in two phases: when a block ends, every site
of the next one reads the finished sources, each of which is then fetched once; later each site adds the live sum.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast, final

import torch
from jaxtyping import Float, Int
from pydantic import NonNegativeFloat, model_validator
from torch import Tensor, nn

from depthroute.errors import ArgumentError, ConfigError
from depthroute.ops import Attended, attend, emitted
from depthroute.residuals import Depth, Labels, ReadBytes, ReadFlops, Reading, Residual, ResidualConfig
from depthroute.residuals.attnres import cost
from depthroute.residuals.attnres.in_place import InPlace
from depthroute.residuals.attnres.keys import AnyKeys, Value
from depthroute.residuals.attnres.routes import Read, Route, read_class
from depthroute.residuals.attnres.sources import AnySources, Blocks, Full, Layout


@final
class Config(ResidualConfig):
    """Attention residuals as sources x keys x routes."""

    name: Literal["attnres"] = "attnres"
    sources: AnySources = Blocks(blocks=8)
    keys: AnyKeys = Value()
    routes: Route = "shared"
    alpha: float = 0.0
    beta: float = 0.0
    gain: bool = False
    eps: NonNegativeFloat = 2.0**-23

    @model_validator(mode="after")
    def scaling_needs_blocks(self) -> "Config":
        if isinstance(self.sources, Full) and (self.alpha, self.beta) != (0, 0):
            raise ConfigError("alpha and beta scale block sums, but with sources 'full' every source is one output")
        return self

    def build(self, width: int, layers: int, impl: str, two_phase: bool) -> "AttentionResidual":
        return AttentionResidual(self, width, layers, impl, two_phase)


class State(NamedTuple):
    """The sources visible at the next site: the embedding, every finished block's sum, the live sum if it has begun."""

    values: tuple[Float[Tensor, "*token width"], ...]
    keys: tuple[Float[Tensor, "*token rank"], ...]
    """Summed like the values: emitted keys or chosen coordinates; none where last coordinates are scored."""
    ahead: tuple[Attended, ...] = ()
    """What the sites of this block read of the finished sources, in order; empty where they read all at once."""


class Visible(NamedTuple):
    """The arguments of `attend` at one site, but for its queries."""

    keys: Sequence[Float[Tensor, "*token rank"]] | None
    values: Sequence[Float[Tensor, "*token width"]]
    prior: Sequence[float] | None

    def last(self) -> "Visible":
        """Nothing but the newest source."""
        keys = None if self.keys is None else self.keys[-1:]
        return Visible(keys, self.values[-1:], None if self.prior is None else self.prior[-1:])


@final
class AttentionResidual(Residual[State]):
    """See the module's docstring for the equation."""

    def __init__(self, config: Config, width: int, layers: int, impl: str, two_phase: bool) -> None:
        super().__init__()
        if layers < 2 and config.routes != "shared":
            raise ConfigError(f"routes '{config.routes}' need 2 layers: the first attention reads the embedding alone")
        rank = config.keys.rank(width)
        self.config, self.width, self.rank = config, width, rank
        self.key_rank = rank if config.keys.emitted else 0
        self.layout = Layout(config.sources, layers)
        self.opens = self.layout.opens
        self.impl, self.two_phase = impl, two_phase
        self.reads = nn.ModuleDict()
        for site in range(1, 2 * layers + 1):  # site 0 has one source: the read is the source, and owns no query
            kind = read_class(config.routes, site, layers)
            self.reads[str(site)] = kind(rank, gain=config.gain, eps=config.eps, impl=impl)
        self.embedding_key = nn.Linear(width, rank, bias=False) if config.keys.emitted else None
        self.coordinates: Tensor | None
        self.register_buffer("coordinates", config.keys.coordinates(width))

    def start(self, embedding: Float[Tensor, "*token width"]) -> State:
        rows = None if self.embedding_key is None else self.embedding_key(embedding)
        return State((embedding,), self.key_of(embedding, rows))

    def read(self, state: State, site: int) -> tuple[Float[Tensor, "*token width"], ...]:
        if site == 0:
            return state.values
        read = self.at(site)
        if not state.ahead:
            return read(*self.visible(state, site))
        block = self.layout.blocks[site]
        before = state.ahead[site - block.start]
        if site == block.start:
            return read.feed(before.mixed)
        return read(*self.visible(state, site).last(), before)

    def in_place(self, embedding: Float[Tensor, "*token width"]) -> Depth[Any]:
        """Itself where sums are scaled anew for each read, or a block's reads are taken ahead."""
        return self if self.two_phase or self.config.alpha != 0 else InPlace(self, embedding)

    def at(self, site: int) -> Read:
        return cast(Read, self.reads[str(site)])

    def visible(self, state: State, site: int) -> Visible:
        """What can be read at the site: keys, values and prior as `attend` takes them."""
        # A finished block was scaled when it ended; a sum that still grows is scaled for each read.
        read = state if site in self.opens else self.scaled(state, site)
        counts = self.layout.counts[site]
        prior = [self.config.beta * math.log(count) for count in counts] if self.config.beta != 0 else None
        return Visible(read.keys or None, read.values, prior)

    def scaled(self, state: State, site: int) -> State:
        """The state with c^-alpha times its newest source, which sums c outputs at the site."""
        if self.config.alpha == 0:
            return state
        factor = self.layout.counts[site][-1] ** -self.config.alpha
        values = (*state.values[:-1], state.values[-1] * factor)
        if self.coordinates is None:  # emitted keys are not the values'
            return state._replace(values=values)
        return state._replace(values=values, keys=(*state.keys[:-1], state.keys[-1] * factor))

    def write(
        self,
        state: State,
        site: int,
        value: Float[Tensor, "*token width"],
        key: Float[Tensor, "*token rank"] | None,
    ) -> State:
        dtype, opens = state.values[0].dtype, site in self.opens
        output = value.to(dtype)
        values = with_output(state.values, (output,), opens)
        keys = with_output(state.keys, self.key_of(output, key), opens)
        if site + 1 not in self.opens:
            return State(values, keys, state.ahead)
        return self.look_ahead(self.scaled(State(values, keys), site + 1), self.layout.blocks[site + 1])

    def look_ahead(self, state: State, block: range) -> State:
        """The state in which the block's sites have read the finished sources, if reads are to be taken in two phases.

        A block of one site has nothing to share.
        """
        if not self.two_phase or len(block) == 1:
            return state
        queries = [self.at(site).scoring() for site in block]
        read = attend(torch.cat(queries), *self.visible(state, block.start), eps=self.config.eps, impl=self.impl)
        sizes = [len(query) for query in queries]
        parts = zip(torch.split(read.mixed, sizes), torch.split(read.lse, sizes), strict=True)
        return state._replace(ahead=tuple(Attended(mixed, lse) for mixed, lse in parts))

    def key_of(
        self, value: Float[Tensor, "*token width"], rows: Float[Tensor, "*token rank"] | None
    ) -> tuple[Tensor, ...]:
        """The key beside an output: RMSNorm(u) of a projection's key rows u, its chosen coordinates, or none."""
        if self.coordinates is not None:
            return (chosen(value, self.coordinates),)
        return () if rows is None else (emitted(rows.to(value.dtype), self.config.eps),)

    def flops(self) -> ReadFlops:
        keys = 0 if self.embedding_key is None else 2 * self.embedding_key.weight.numel()
        return cost.flops(self.shape(), keys)

    def bytes(self, element: int) -> ReadBytes:
        return cost.read_bytes(self.shape(), element)

    def shape(self) -> cost.Shape:
        reads = {int(site): self.at(int(site)) for site in self.reads}
        routes = {site: read.routes for site, read in reads.items()}
        fed = {site: len(read.feed(torch.empty(len(read.routes), 0))) for site, read in reads.items()}
        beside = self.key_rank > 0 or self.coordinates is not None
        return cost.Shape(self.layout, self.width, self.rank, beside, routes, fed)

    def labels(self, site: int) -> Labels:
        routes = self.at(site).routes if site else ("shared",)
        return Labels(routes, self.layout.names(site), self.layout.live(site))

    def reading(self, state: State, site: int) -> Reading | None:
        if site == 0:
            return None
        read, visible = self.at(site), self.visible(state, site)
        keys = visible.keys
        if keys is None:
            keys = [value[..., -self.rank :] for value in visible.values]
        return Reading(read.scoring(), keys, visible.values, visible.prior, self.config.eps, read.feed)

    def reset_parameters(self) -> None:
        for read in self.reads.values():
            cast(Read, read).reset_parameters()
        if self.coordinates is not None:  # a model built on the meta device has lost them
            drawn = self.config.keys.coordinates(self.width)
            self.coordinates = cast(Tensor, drawn).to(self.coordinates.device)


def chosen(value: Float[Tensor, "*token width"], coordinates: Int[Tensor, " rank"]) -> Float[Tensor, "*token rank"]:
    if coordinates.is_meta and not value.is_meta:  # torch would read memory that nobody has written
        raise ArgumentError(
            "coordinates: hold no numbers; keep a model's buffers where it computes (offload_buffers=False)"
        )
    return value.index_select(-1, coordinates)


def with_output(sources: tuple[Tensor, ...], output: tuple[Tensor, ...], opens: bool) -> tuple[Tensor, ...]:
    """The sources after one more output: a source of its own where it opens a block, else added to the live sum."""
    if opens:
        return (*sources, *output)
    return (*sources[:-1], *(live + new for live, new in zip(sources[-1:], output, strict=True)))
