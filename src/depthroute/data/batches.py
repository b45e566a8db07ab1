"""Batches: windows of a part's tokens. A training batch is a function of the seed and its number alone."""

from collections.abc import Iterator
from typing import NamedTuple, final

import numpy as np

from depthroute.data.shards import Part
from depthroute.errors import ArgumentError, DataError


class Batch(NamedTuple):
    """int64 arrays of shape [batch, length]. `targets` are next tokens, `documents` a token's document."""

    tokens: np.ndarray
    targets: np.ndarray
    documents: np.ndarray


def windows_of(part: Part, length: int) -> int:
    """How many windows of `length` tokens, each with a next token, the part holds."""
    if length < 1:
        raise ArgumentError(f"length: a window holds at least 1 token, not {length}")
    if part.tokens < length + 1:
        raise DataError(
            f"part '{part.name}' has {part.tokens} tokens, one window of length {length} needs {length + 1}: "
            "give more text or a smaller length"
        )
    return (part.tokens - 1) // length


def gather(part: Part, windows: np.ndarray, length: int) -> Batch:
    """The windows with these numbers; window n starts at token n x length."""
    starts = windows.astype(np.int64) * length
    rows = np.stack([part.read(start, start + length + 1) for start in starts.tolist()]).astype(np.int64)
    documents = part.documents_of(starts[:, None] + np.arange(length))
    return Batch(rows[:, :-1], rows[:, 1:], documents)


@final
class Batches:
    """`batches[n]` is batch `n` of endless training: each epoch permutes all windows, keyed by the seed and the epoch.

    A batch may begin in one epoch and end in the next, so that every window comes exactly once in each.
    """

    def __init__(self, part: Part, *, length: int, batch: int, seed: int) -> None:
        if batch < 1:
            raise ArgumentError(f"batch: must be at least 1, not {batch}")
        if not 0 <= seed < 2**64:
            raise ArgumentError(f"seed: must lie between 0 and 2**64 - 1, not {seed}")
        self.part, self.length, self.batch, self.seed = part, length, batch, seed
        self.windows = windows_of(part, length)
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def __getitem__(self, number: int) -> Batch:
        if number < 0:
            raise ArgumentError(f"batch number: must be at least 0, not {number}")
        samples = np.arange(number * self.batch, (number + 1) * self.batch)
        epochs, positions = np.divmod(samples, self.windows)
        chosen = np.concatenate(
            [self._permutation(epoch)[positions[epochs == epoch]] for epoch in np.unique(epochs).tolist()]
        )
        return gather(self.part, chosen, self.length)

    def _permutation(self, epoch: int) -> np.ndarray:
        if epoch != self._epoch:
            # Sorting raw random words: unlike `permutation`, numpy promises that these never change.
            words = np.random.Philox(key=np.array([self.seed, epoch], np.uint64)).random_raw(self.windows)
            self._epoch, self._order = epoch, np.argsort(words, kind="stable")
        return self._order


def evaluation_batches(part: Part, *, length: int, batch: int, tokens: int | None = None) -> Iterator[Batch]:
    """The same windows in the same order for everyone: all of the part, or as many as hold at most `tokens` tokens.

    With `tokens` the windows are spread evenly over the part, so that its first documents alone don't stand for it.
    """
    if batch < 1:
        raise ArgumentError(f"batch: must be at least 1, not {batch}")
    windows = windows_of(part, length)
    count = windows if tokens is None else min(windows, tokens // length)
    if count < 1:
        raise ArgumentError(f"tokens: {tokens} is less than one window of length {length}")
    chosen = np.arange(count) * windows // count
    return (gather(part, chosen[start : start + batch], length) for start in range(0, count, batch))
