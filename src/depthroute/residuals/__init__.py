"""What a sublayer reads and writes: one file (or folder) here is one residual, found by its name.

A residual's module has a docstring with its equation and paper, a `Config` and the class that the config builds. Config
keys, contract tests and study arms follow from `names()`; nothing else has to be edited.
"""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

from jaxtyping import Float
from pydantic import BeforeValidator, SerializeAsAny
from torch import Tensor, nn

from depthroute.errors import ConfigError
from depthroute.schema import Schema, nearest

State = TypeVar("State", bound=tuple[Any, ...])
Fed = tuple[Float[Tensor, "*token width"], ...] | Float[Tensor, "fed *token width"]
"""One tensor for all roles, two (query and key, value) or three (query, key, value): apart, or as rows of one."""


class RouteFlops(NamedTuple):
    """Forward FLOPs a token of one route's reads, by the papers' convention: a product and its sum are two."""

    score: int
    """Inner products of queries and keys."""
    mix: int
    """Weighted sums of values."""


class ReadFlops(NamedTuple):
    """Forward FLOPs a token of all depth reads. Norms of keys and the softmax, of lower order, are not counted."""

    routes: dict[str, RouteFlops]
    key_projection: int
    """Keys that the residual itself projects; those of the sublayers' key rows are the sublayers'."""


class ReadBytes(NamedTuple):
    """Bytes a token of the depth side, where a coordinate takes `element` bytes and a log-normaliser takes 4."""

    direct: int
    """Moved by all reads of a forward pass, each reading its sources once and writing its mixtures."""
    two_phase: int
    """The same where all reads of a block share one pass over the finished sources, and join the live sum later."""
    kept: int
    """Kept by a forward pass for its backward: every source, mixture and log-normaliser, once."""
    state: tuple[int, ...]
    """The sources (and the keys beside them) alive at each site 0 .. 2L."""
    fed: tuple[int, ...]
    """Not bytes: how many tensors each site feeds its sublayer."""


class Labels(NamedTuple):
    """The names of what a site reads."""

    routes: tuple[str, ...]
    """One a mixture."""
    sources: tuple[str, ...]
    live: bool
    """Whether the last source is the sum of a block that is not finished."""


class Reading(NamedTuple):
    """A read before it is carried out: the arguments of `attend`, the gain folded into the queries."""

    queries: Float[Tensor, "query rank"]
    keys: Sequence[Float[Tensor, "*token rank"]]
    values: Sequence[Float[Tensor, "*token width"]]
    prior: Sequence[float] | None
    eps: float
    feed: Callable[[Float[Tensor, "query *token width"]], tuple[Float[Tensor, "*token width"], ...]]
    """From the mixtures to what the sublayer is fed."""


class Depth(ABC, Generic[State]):
    """What a forward pass asks for: sites 0 .. 2L-1 feed the sublayers, site 2L the final norm.

    state = start(embedding),  state = write(state, site, *sublayer(read(state, site))),  readout = read(state, 2L)
    """

    @abstractmethod
    def start(self, embedding: Float[Tensor, "*token width"]) -> State:
        """The state before the first sublayer."""

    @abstractmethod
    def read(self, state: State, site: int) -> Fed:
        """What the site is fed."""

    @abstractmethod
    def write(
        self,
        state: State,
        site: int,
        value: Float[Tensor, "*token width"],
        key: Float[Tensor, "*token rank"] | None,
    ) -> State:
        """The state after sublayer `site` has given its value and, where `key_rank` is not 0, its key."""


class Residual(nn.Module, Depth[State], ABC):
    """The depth side of a decoder of `L` layers.

    The state is an immutable tuple of tensors, all in the embedding's dtype. Nothing of a forward pass is kept on
    `self`, and every read is local to a token.
    """

    key_rank: int
    """Rows that each sublayer's output projection computes beside its value: the rank of emitted keys, 0 for none."""

    opens: frozenset[int]
    """The sites at which a block begins: where a model may be cut into parts that are computed again in backward."""

    @abstractmethod
    def read(self, state: State, site: int) -> tuple[Float[Tensor, "*token width"], ...]:
        """What the site is fed, apart."""

    def in_place(self, embedding: Float[Tensor, "*token width"]) -> Depth[Any]:
        """The same reads and writes, without gradients, for many passes over tokens shaped like these.

        It may keep memory from one pass to the next, so that only one pass can run at a time, and what depends on
        parameters alone. The residual itself, where nothing is gained.
        """
        return self

    @abstractmethod
    def flops(self) -> ReadFlops:
        """What all reads of one token cost in a forward pass."""

    @abstractmethod
    def bytes(self, element: int) -> ReadBytes:
        """What the sources and reads of one token weigh, with coordinates of `element` bytes."""

    @abstractmethod
    def labels(self, site: int) -> Labels:
        """What the site reads, by name."""

    @abstractmethod
    def reading(self, state: State, site: int) -> Reading | None:
        """The site's read, for those who want to look at it or change it; None where nothing is weighed."""

    @abstractmethod
    def reset_parameters(self) -> None:
        """Give every parameter that is not a drawn matrix its constant start."""


class ResidualConfig(Schema, ABC):
    """A concrete config has a field `name`, the name of its module."""

    @abstractmethod
    def build(self, width: int, layers: int, impl: str, two_phase: bool) -> Residual[Any]:
        """The residual of a model of this width (coordinates of a value) and this many layers.

        `impl` computes its reads, all of a site's at once or, `two_phase`, the finished sources ahead.
        """


def names() -> list[str]:
    """Every residual there is: the names of this folder's modules."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def config_class(name: str) -> type[ResidualConfig]:
    if name not in names():
        raise ConfigError(f"residual '{name}' does not exist {nearest(name, names())}")
    return importlib.import_module(f"{__name__}.{name}").Config


def parse(raw: object) -> ResidualConfig:
    """The config that plain data describes; its key `name` says which residual."""
    if isinstance(raw, ResidualConfig):
        return raw
    if not isinstance(raw, dict) or "name" not in raw:
        raise ConfigError(
            f"give a mapping with a name, such as {{name: NAME, ...}} (names: {', '.join(names())}); "
            "depthroute.expand_model puts such a mapping in a preset's place"
        )
    return config_class(str(raw["name"])).parse(raw)  # pyright: ignore[reportUnknownArgumentType]


AnyResidual = Annotated[SerializeAsAny[ResidualConfig], BeforeValidator(parse)]
"""The type of a config field that holds any residual."""
