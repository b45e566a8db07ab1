"""Keys and values of tokens that were read before, so that a pass reads new tokens only.

Depth reads are local to a token: attention's keys and values are all that one pass has to leave for the next. What a
residual may leave is memory to be written over, and what depends on parameters alone.
"""

import math
import sys
from abc import ABC, abstractmethod
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from depthroute.errors import ArgumentError, lacks_memory
from depthroute.residuals import Depth, Residual


@final
class Places(dict[Any, Depth[Any]]):
    """What the tokens of a cache are read with. A copy of the cache makes its own: addresses are no one else's."""

    def __deepcopy__(self, memo: Any) -> "Places":
        return Places()

    def __reduce__(self) -> tuple[type["Places"], tuple[()]]:
        return Places, ()


class Cache(ABC):
    """What the Transformer asks of a cache."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Tokens of every sequence that earlier passes have left here."""

    @abstractmethod
    def update(
        self, key: Float[Tensor, "batch head token width"], value: Float[Tensor, "batch head token width"], layer: int
    ) -> tuple[Tensor, Tensor]:
        """Keep the layer's new keys and values; all of its keys and values, in the order of the tokens."""

    @property
    def owner(self) -> object:
        """Whatever lives as long as the cached tokens: it keeps what passes leave behind for later reads."""
        return self

    def depth(self, residual: Residual[Any], embedding: Float[Tensor, "batch token width"]) -> Depth[Any]:
        """Who reads from depth in this pass: the residual, or its reads in place.

        In place for one token a sequence, where reading costs less than finding out what lies where.
        """
        if embedding.shape[1] > 1 or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return residual
        like = (residual, embedding.shape, embedding.dtype, embedding.device, torch.is_inference_mode_enabled())
        places = vars(self.owner).setdefault("_places", Places())
        if like not in places:
            places.clear()
            places[like] = residual.in_place(embedding)
        return places[like]


@final
class KeyValueCache(Cache):
    """A cache with room for `capacity` tokens of every sequence, allocated once, at the first pass.

    It is written in place: backward through more than one pass is an error of torch.
    """

    def __init__(self, layers: int, capacity: int) -> None:
        self.layers, self.capacity, self._length = layers, capacity, 0
        self._kept: list[tuple[Tensor, Tensor]] = []

    @property
    def length(self) -> int:
        return self._length

    def update(
        self, key: Float[Tensor, "batch head token width"], value: Float[Tensor, "batch head token width"], layer: int
    ) -> tuple[Tensor, Tensor]:
        start, end = self._length, self._length + key.shape[2]
        if end > self.capacity:
            raise ArgumentError(f"cache: has room for {self.capacity} tokens, and these are {end}; make it larger")
        if layer == len(self._kept):
            self._kept.append((self.room(key), self.room(value)))
        keys, values = self._kept[layer]
        keys[:, :, start:end] = key
        values[:, :, start:end] = value
        if layer == self.layers - 1:
            self._length = end
        return keys[:, :, :end], values[:, :, :end]

    def room(self, like: Float[Tensor, "batch head token width"]) -> Float[Tensor, "batch head capacity width"]:
        shape = (*like.shape[:2], self.capacity, like.shape[3])
        if math.prod(shape) * like.element_size() > sys.maxsize:  # torch cannot count so many bytes
            raise ArgumentError(f"cache: no memory for {self.capacity} tokens; make it smaller")
        try:
            return like.new_empty(shape)
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
            raise ArgumentError(f"cache: no memory for {self.capacity} tokens; make it smaller") from None

    def cut(self, length: int) -> None:
        """Forget all tokens but the first `length`."""
        if not 0 <= length <= self._length:
            raise ArgumentError(f"length: {length} must lie between 0 and the {self._length} tokens that are here")
        self._length = length
