"""An encoded corpus on disk: memory-mapped tokens and document boundaries, and an index that vouches for every byte."""

import hashlib
import json
import os
from array import array
from pathlib import Path
from typing import Any, BinaryIO, Literal, final

import numpy as np
from pydantic import ValidationError

from depthroute.data.files import sha256
from depthroute.data.tokenizer import Tokenizer
from depthroute.errors import DataError
from depthroute.schema import Schema, one_line

FORMAT = 1
INDEX = "index.json"
TOKENIZER = "tokenizer.json"
SHARD_TOKENS = 1 << 26
FLUSH = 1 << 20


class FileEntry(Schema):
    bytes: int
    sha256: str


class TokenizerEntry(Schema):
    vocab: int
    end: int
    end_token: str
    digest: str


class PartEntry(Schema):
    """`bytes` of text, end-of-text tokens not counted; `dropped` says how many documents were left out, and why."""

    tokens: int
    bytes: int
    documents: int
    shards: list[str]
    offsets: str
    dropped: dict[str, int]


class Index(Schema):
    """`key` is the digest of `source`, which identifies corpora and tokenizer without naming absolute paths."""

    format: int
    name: str
    key: str
    source: dict[str, Any]
    dtype: Literal["<u2", "<u4"]
    tokenizer: TokenizerEntry
    parts: dict[str, PartEntry]
    files: dict[str, FileEntry]


def canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: object) -> str:
    """sha256 of plain data."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def write_file(path: Path, content: bytes) -> FileEntry:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def write_index(directory: Path, index: Index) -> None:
    body = index.model_dump(mode="json")
    whole = {"checksum": digest(body), **body}
    write_file(directory / INDEX, (json.dumps(whole, indent=1, ensure_ascii=False) + "\n").encode())


def read_index(directory: Path) -> Index:
    """The index, its own checksum verified; the files that it lists are not looked at."""
    path = directory / INDEX
    again = f"delete {directory} and build again"
    if not path.is_file():
        raise DataError(f"{directory}: holds no built data ({INDEX} is missing): build it, or {again} if it was built")
    try:
        body = json.loads(path.read_bytes())
        checksum = body.pop("checksum")
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        raise DataError(f"{path}: damaged, not an index in JSON with a checksum: {again}") from None
    if checksum != digest(body):
        raise DataError(f"{path}: damaged, its checksum does not match: {again}")
    if body.get("format") != FORMAT:
        raise DataError(f"{path}: has format {body.get('format')}, this version reads {FORMAT}: {again}")
    try:
        return Index.model_validate(body)
    except ValidationError as error:
        raise DataError(f"{path}: damaged, {one_line(error, Index)}: {again}") from None


@final
class PartWriter:
    """Writes the tokens of one part to shards of at most `shard_tokens`, each document followed by the end token."""

    def __init__(self, directory: Path, name: str, dtype: np.dtype, end: int, shard_tokens: int) -> None:
        self.directory, self.name, self.dtype, self.shard_tokens = directory, name, dtype, shard_tokens
        self.files: dict[str, FileEntry] = {}
        self.offsets = array("q", [0])
        self.tokens = 0
        self._end = np.array([end], dtype)
        self._waiting: list[np.ndarray] = []
        self._written = 0
        self._shard: BinaryIO | None = None
        self._hash = hashlib.sha256()

    def add(self, ids: np.ndarray, last: bool) -> None:
        """Append a piece of a document; `last` ends the document."""
        self._waiting.append(ids.astype(self.dtype))
        self.tokens += len(ids) + last
        if last:
            self._waiting.append(self._end)
            self.offsets.append(self.tokens)
        if self.tokens - self._written >= FLUSH:
            self._flush()

    def finish(self, size: int, dropped: dict[str, int]) -> PartEntry:
        """Write what is left and the offsets. `size` is the part's text in bytes."""
        self._flush()
        self._close_shard()
        shards = list(self.files)
        offsets = f"{self.name}.offsets"
        self.files[offsets] = write_file(self.directory / offsets, np.array(self.offsets, "<i8").tobytes())
        return PartEntry(
            tokens=self.tokens,
            bytes=size,
            documents=len(self.offsets) - 1,
            shards=shards,
            offsets=offsets,
            dropped=dropped,
        )

    def close(self) -> None:
        """Let go of the open file after a failure."""
        if self._shard is not None:
            self._shard.close()

    def _flush(self) -> None:
        data = np.concatenate([np.empty(0, self.dtype), *self._waiting])
        self._waiting = []
        while len(data):
            if self._shard is None:
                self._shard = (self.directory / self._shard_name()).open("wb")
            now = data[: self.shard_tokens - self._written % self.shard_tokens]
            content = now.tobytes()
            self._shard.write(content)
            self._hash.update(content)
            self._written += len(now)
            data = data[len(now) :]
            if self._written % self.shard_tokens == 0:
                self._close_shard()

    def _shard_name(self) -> str:
        return f"{self.name}-{len(self.files):05d}.bin"

    def _close_shard(self) -> None:
        if self._shard is None:
            return
        self._shard.flush()
        os.fsync(self._shard.fileno())
        self._shard.close()
        size = self._written - len(self.files) * self.shard_tokens
        self.files[self._shard_name()] = FileEntry(bytes=size * self.dtype.itemsize, sha256=self._hash.hexdigest())
        self._shard, self._hash = None, hashlib.sha256()


@final
class Part:
    """The tokens of one part, memory-mapped. `tokens` counts end-of-text tokens, `bytes` only text."""

    def __init__(self, directory: Path, name: str, entry: PartEntry, dtype: np.dtype) -> None:
        self.name = name
        self.tokens, self.bytes, self.documents = entry.tokens, entry.bytes, entry.documents
        self.offsets: np.ndarray = np.memmap(directory / entry.offsets, "<i8", mode="r")
        self._shards: list[np.ndarray] = [np.memmap(directory / shard, dtype, mode="r") for shard in entry.shards]
        self._starts = np.cumsum([0, *(len(shard) for shard in self._shards)])
        if self._starts[-1] != self.tokens or len(self.offsets) != self.documents + 1:
            raise DataError(f"{directory}: the sizes of part '{name}' contradict its index: delete it and build again")

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens `start` to `stop` of the part, in the stored type."""
        first, last = np.searchsorted(self._starts, [start, stop - 1], side="right") - 1
        pieces = [
            self._shards[shard][max(start - self._starts[shard], 0) : stop - self._starts[shard]]
            for shard in range(first, last + 1)
        ]
        return np.concatenate(pieces)

    def documents_of(self, positions: np.ndarray) -> np.ndarray:
        """Index of the document that each token position belongs to; an end-of-text token belongs to what it ends."""
        return np.searchsorted(self.offsets, positions, side="right") - 1


@final
class Dataset:
    """A built corpus. `parts` are `train`, `validation` and then the held-out domains by name."""

    def __init__(self, directory: Path, index: Index, tokenizer: Tokenizer) -> None:
        self.directory = directory
        self.index = index
        self.tokenizer = tokenizer
        self.vocab = index.tokenizer.vocab
        self.tokenizer_digest = index.tokenizer.digest
        self.digest = sha256(directory / INDEX)
        dtype = np.dtype(index.dtype)
        self.parts = {name: Part(directory, name, entry, dtype) for name, entry in index.parts.items()}

    @classmethod
    def open(cls, directory: Path) -> "Dataset":
        """Open a built directory after checking the size and sha256 of every file in it."""
        index = read_index(directory)
        again = f"delete {directory} and build again"
        for name, entry in index.files.items():
            path = directory / name
            if not path.is_file():
                raise DataError(f"{path}: missing: {again}")
            if path.stat().st_size != entry.bytes:
                raise DataError(f"{path}: is {path.stat().st_size} bytes, its index says {entry.bytes}: {again}")
            if sha256(path) != entry.sha256:
                raise DataError(f"{path}: damaged, its sha256 is not what its index says: {again}")
        path = directory / TOKENIZER
        tokenizer = Tokenizer(path.read_text(encoding="utf-8"), str(path), index.tokenizer.end_token)
        return cls(directory, index, tokenizer)
