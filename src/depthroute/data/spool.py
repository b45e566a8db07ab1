"""A corpus on disk between being read and being encoded: its text in one file, and a few numbers a document in memory.

Reading once and then working from the copy keeps memory constant, reads a stream of the network a single time, and
lets the side of a document of any size follow from the hash of all of it. It costs the disk space of the text.
"""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import final

import numpy as np

from depthroute.data.files import Document

PIECE = 64 << 10
BATCH = 1 << 20

Progress = Callable[[str, int, int | None], None]
"""Called as `progress(stage, bytes done, bytes in all or None)`."""


@final
class Spool:
    """The documents of one corpus. `marks` are 64-bit hashes of the texts, `sides` is True for validation."""

    def __init__(self, path: Path, documents: Iterable[Document], fraction: float, shortest: int, tick: "Tick") -> None:
        """Read all documents; fewer than `shortest` bytes besides white space are dropped and counted in `short`."""
        self.path = path
        self.short = 0
        ends, marks, sides = array("q"), array("Q"), array("B")
        end = 0
        with path.open("wb") as file:
            for document in documents:
                digest, size, content = hashlib.sha256(), 0, 0
                for chunk in document.chunks:
                    file.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
                    content += len(chunk.strip())
                tick(size)
                if content < shortest:
                    self.short += 1
                    file.seek(end)
                    continue
                end += size
                mark = int.from_bytes(digest.digest()[:8], "big")
                held = mark < fraction * 2**64 if document.validation is None else document.validation
                ends.append(end)
                marks.append(mark)
                sides.append(held)
            file.truncate(end)
        self.ends = np.array(ends, np.int64)
        self.marks = np.array(marks, np.uint64)
        self.sides = np.array(sides, bool)

    def __len__(self) -> int:
        return len(self.ends)

    def size(self, chosen: np.ndarray) -> int:
        """Bytes of the chosen documents."""
        return int(np.diff(self.ends, prepend=0)[chosen].sum())

    def pieces(self, chosen: np.ndarray) -> Iterator[tuple[bytes, bool]]:
        """The documents at the indices `chosen`, as pieces of at most `PIECE` bytes; True with a document's last one.

        A piece ends after a line, failing that after white space, failing that between characters.
        """
        starts = np.concatenate([[0], self.ends[:-1]])
        with self.path.open("rb") as file:
            for index in chosen.tolist():
                left = int(self.ends[index] - starts[index])
                file.seek(int(starts[index]))
                waiting = b""
                while left or waiting:
                    chunk = file.read(min(left, PIECE - len(waiting)))
                    left -= len(chunk)
                    waiting += chunk
                    cut = cut_of(waiting) if left else len(waiting)
                    yield waiting[:cut], not left and cut == len(waiting)
                    waiting = waiting[cut:]

    def batches(self, chosen: np.ndarray) -> Iterator[list[tuple[bytes, bool]]]:
        """`pieces`, grouped to about a megabyte."""
        batch: list[tuple[bytes, bool]] = []
        size = 0
        for piece in self.pieces(chosen):
            batch.append(piece)
            size += len(piece[0]) + 64  # a bound for the number of tiny pieces too
            if size >= BATCH:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch


def cut_of(piece: bytes) -> int:
    """Where to cut a piece that goes on: never at 0."""
    for space in (b"\n", b" "):
        if end := piece.rfind(space) + 1:
            return end
    end = len(piece)
    while piece[end - 1] & 0xC0 == 0x80:
        end -= 1
    # The last character may be whole, but its length is not worth knowing: cut before it.
    return end - 1 if end > 1 else len(piece)


@final
class Tick:
    """Bytes of one stage, handed to a `Progress` a megabyte at a time."""

    def __init__(self, progress: Progress | None, stage: str, total: int | None) -> None:
        self.progress, self.stage, self.total = progress, stage, total
        self.done, self.told = 0, -BATCH

    def __call__(self, size: int) -> None:
        self.done += size
        if self.progress is not None and self.done - self.told >= BATCH:
            self.told = self.done
            self.progress(self.stage, self.done, self.total)

    def passed(self, piece: bytes) -> bytes:
        """Count a piece on its way to somewhere else."""
        self(len(piece))
        return piece
