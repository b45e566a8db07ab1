"""What is probed: a trained run's final model, and held-out text in the run's own tokens and windows."""

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from depthroute import runs
from depthroute.config import Config
from depthroute.data import INDEX, Dataset, FilesCorpus, Part, Tokenizer, evaluation_batches
from depthroute.data.building import dtype_of
from depthroute.data.corpora import documents
from depthroute.data.shards import SHARD_TOKENS, PartWriter
from depthroute.errors import DataError
from depthroute.model.transformer import Transformer
from depthroute.train.trained import check_finished, load_model, load_tokenizer, trained_by


@dataclass(frozen=True)
class Tokens:
    """One batch on the model's device. `documents` are numbers within the text."""

    tokens: Int[Tensor, "batch token"]
    targets: Int[Tensor, "batch token"]
    documents: Int[Tensor, "batch token"]


@dataclass(frozen=True)
class Subject:
    """A run's final model, and what it says of itself."""

    run: Path
    config: Config
    manifest: dict[str, Any]
    model: Transformer


@dataclass(frozen=True)
class Text:
    """Held-out text as windows of the run's length, at most `limit` tokens, spread evenly."""

    name: str
    part: Part
    config: Config
    limit: int

    def batches(self, device: torch.device) -> Iterator[Tokens]:
        rows = self.config.batch // self.config.accumulation
        for batch in evaluation_batches(self.part, length=self.config.length, batch=rows, tokens=self.limit):
            yield Tokens(*(torch.from_numpy(array).to(device) for array in batch))

    @property
    def tokens(self) -> int:
        """How many the batches hold."""
        windows = (self.part.tokens - 1) // self.config.length
        return min(windows, self.limit // self.config.length) * self.config.length


def load(run: Path, device: torch.device | None = None) -> Subject:
    """The final model of a finished run, in fp32. RunError says what is missing and what to do."""
    check_finished(run)
    trained, manifest = trained_by(run), runs.manifest(run)
    chosen = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return Subject(run, trained, manifest, load_model(run, chosen))


@contextmanager
def held_out(subject: Subject, data: Path, name: str | None, files: list[str], limit: int) -> Iterator[Text]:
    """The text to probe on: `files` in the run's tokens, or its held-out set `name` (None: validation).

    DataError where it cannot be.

    The documents of a text file are runs of whole lines of about 8 KiB; those of JSONL and Parquet are rows.
    """
    if limit < subject.config.length:
        raise DataError(f"--tokens {limit} is less than one window of the run, {subject.config.length} tokens")
    if files and name is not None:
        raise DataError(f"--held-out {name}: --text gives the text already; take one of them away")
    if not files:
        name = name or "validation"
        parts = dataset(subject, data).parts
        choices = [part for part in parts if part != "train"]
        if name not in choices:
            raise DataError(f"--held-out {name}: {subject.run} has no such set (choices: {', '.join(choices)})")
        yield checked(Text(name, parts[name], subject.config, limit))
        return
    with tempfile.TemporaryDirectory(prefix="depthroute-") as folder:
        part = encoded(files, load_tokenizer(subject.run), Path(folder))
        yield checked(Text(", ".join(Path(file).name for file in files), part, subject.config, limit))


def checked(text: Text) -> Text:
    next(text.batches(torch.device("cpu")))  # A text shorter than one window is found before any work.
    return text


def dataset(subject: Subject, data: Path) -> Dataset:
    """The very data set that the run was trained on, verified."""
    wanted = subject.manifest["data_digest"]
    for path in sorted(data.glob(f"[!.]*/{INDEX}")):
        if hashlib.sha256(path.read_bytes()).hexdigest() == wanted:
            return Dataset.open(path.parent)
    raise DataError(
        f"{data}: does not hold the data that {subject.run} was trained on; name their folder with --data, or build "
        f"them: depthroute data build {subject.run / runs.CONFIG} --data {data}"
    )


def encoded(files: list[str], made: Tokenizer, folder: Path) -> Part:
    """The documents of local files, each followed by the end-of-text token, as a part on disk."""
    dtype = np.dtype(dtype_of(made.vocab))
    writer = PartWriter(folder, "text", dtype, made.end, SHARD_TOKENS)
    size = 0
    try:
        for document in documents(FilesCorpus(files=files, split="document"), only_validation=False):
            text = b"".join(document.chunks)
            size += len(text)
            if text.strip():
                (ids,) = made.encode_pieces([text])
                writer.add(ids, last=True)
        entry = writer.finish(size, {})
    finally:
        writer.close()
    if entry.tokens == 0:
        raise DataError(f"{', '.join(files)}: holds no text")
    return Part(folder, "text", entry, dtype)
