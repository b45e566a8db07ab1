"""Building a corpus: read, split, drop what leaks, train the tokenizer, encode; visible only when it is complete."""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np

from depthroute.data import corpora, tokenizer
from depthroute.data.config import DataConfig, FilesCorpus, HubCorpus
from depthroute.data.shards import (
    FORMAT,
    SHARD_TOKENS,
    TOKENIZER,
    FileEntry,
    Index,
    PartEntry,
    PartWriter,
    TokenizerEntry,
    digest,
    read_index,
    write_file,
    write_index,
)
from depthroute.data.spool import Progress, Spool, Tick
from depthroute.errors import DataError

PARTIAL = ".partial-"


def build(
    config: DataConfig, root: Path, progress: Progress | None = None, *, shard_tokens: int = SHARD_TOKENS
) -> Path:
    """Encode the corpus into `root/<name>-<digest>` and return that directory; at once where it is there already.

    The name follows from the content of local files and installed modules, not from where they lie; a set on the hub
    goes by its name, subset, split and revision, so only a commit as `revision` tells one state of it from another.
    Files must not change while it works. It needs the disk space of the text beside that of the tokens; memory does
    not grow with the text but by 17 bytes a document, beside what `FilesCorpus` and `HubCorpus` say of reading.
    """
    source = describe(config)
    key = digest({"format": FORMAT, "source": source})
    directory = root / f"{readable_name(config)}-{key[:12]}"
    try:
        if not built(directory, key):
            root.mkdir(parents=True, exist_ok=True)
            with only_builder(root, progress):
                if not built(directory, key):
                    write_aside(config, source, key, directory, progress, shard_tokens)
    except OSError as error:
        raise DataError(f"cannot build {directory}: {error.strerror or error}{named(error)}") from error
    return directory


def describe(config: DataConfig) -> dict[str, object]:
    """What identifies the result of a build, as far as `corpora.fingerprint` identifies its corpora."""
    return {
        "corpus": corpora.fingerprint(config.corpus),
        "tokenizer": tokenizer.fingerprint(config.tokenizer),
        "held_out": {name: corpora.fingerprint(corpus) for name, corpus in config.held_out.items()},
    }


def readable_name(config: DataConfig) -> str:
    name = f"{corpora.readable_name(config.corpus)}-{tokenizer.readable_name(config.tokenizer)}"
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:64]


def named(error: OSError) -> str:
    return f" ({error.filename})" if error.filename else ""


def built(directory: Path, key: str) -> bool:
    if not directory.exists():
        return False
    if read_index(directory).key != key:
        raise DataError(f"{directory}: holds other data under the same name: move it away and build again")
    return True


@contextmanager
def only_builder(root: Path, progress: Progress | None) -> Iterator[None]:
    """Hold the lock of `root`, and remove what a killed build left. The system releases the lock of a dead process."""
    with (root / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if progress is not None:
                progress(f"waiting for another build in {root}", 0, None)
            fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in root.glob(f"{PARTIAL}*"):
            shutil.rmtree(leftover)
        yield


def write_aside(
    config: DataConfig, source: dict[str, object], key: str, directory: Path, progress: Progress | None, shard: int
) -> None:
    """Write a partial directory beside the final one and rename it when everything in it is on disk."""
    partial = directory.with_name(PARTIAL + directory.name)
    partial.mkdir()
    try:
        parts, files, made = write_parts(config, partial, progress, shard)
        entry = TokenizerEntry(vocab=made.vocab, end=made.end, end_token=made.end_token, digest=made.digest)
        index = Index(
            format=FORMAT,
            name=readable_name(config),
            key=key,
            source=source,
            dtype=dtype_of(made.vocab),
            tokenizer=entry,
            parts=parts,
            files=files,
        )
        write_index(partial, index)
        sync(partial)
        partial.rename(directory)
        sync(directory.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def dtype_of(vocab: int) -> Literal["<u2", "<u4"]:
    return "<u2" if vocab <= 1 << 16 else "<u4"


def write_parts(
    config: DataConfig, partial: Path, progress: Progress | None, shard: int
) -> tuple[dict[str, PartEntry], dict[str, FileEntry], tokenizer.Tokenizer]:
    """Read every corpus, decide what each part holds, make the tokenizer, and encode part after part."""
    main = spool(config.corpus, partial / "corpus.spool", "reading", progress)
    validation = np.flatnonzero(main.sides)
    for_training = np.flatnonzero(~main.sides)
    train = for_training[~np.isin(main.marks[for_training], main.marks[validation])]
    duplicates = len(for_training) - len(train)
    check_split(config.corpus, main, len(train), len(validation), duplicates)
    tick = Tick(progress, "training the tokenizer", main.size(train))
    made = tokenizer.make(config.tokenizer, (tick.passed(piece) for piece, _ in main.pieces(train)))
    files = {TOKENIZER: write_file(partial / TOKENIZER, made.json.encode())}
    parts: dict[str, PartEntry] = {}

    def write(name: str, texts: Spool, chosen: np.ndarray, dropped: dict[str, int]) -> None:
        writer = PartWriter(partial, name, np.dtype(dtype_of(made.vocab)), made.end, shard)
        tick = Tick(progress, f"encoding {name}", texts.size(chosen))
        try:
            for batch in texts.batches(chosen):
                ids = made.encode_pieces([piece for piece, _ in batch])
                for array, (piece, last) in zip(ids, batch, strict=True):
                    writer.add(array, last)
                    tick(len(piece))
            parts[name] = writer.finish(texts.size(chosen), dropped)
        finally:
            writer.close()
        files.update(writer.files)

    # A document that is too short has no side, so it counts where the reading counts: with the training part.
    write("train", main, train, {"short": main.short, "duplicates": duplicates})
    write("validation", main, validation, {})
    training_marks = np.unique(main.marks[train])
    main.path.unlink()
    for name, corpus in config.held_out.items():
        texts = spool(corpus, partial / f"{name}.spool", f"reading {name}", progress, only_validation=True)
        held = np.flatnonzero(texts.sides)
        kept = held[~np.isin(texts.marks[held], training_marks)]
        leaks = len(held) - len(kept)
        if not len(kept):
            fraction = corpora.validation_fraction(corpus)
            raise DataError(
                f"held_out.{name}: empty ({len(texts)} documents, {len(held)} held out by `validation: {fraction}`, "
                f"{leaks} of these dropped because training holds them): give more text or raise its `validation`"
            )
        write(name, texts, kept, {"short": texts.short, "leaks": leaks})
        texts.path.unlink()
    return parts, files, made


def spool(
    corpus: str | FilesCorpus | HubCorpus,
    path: Path,
    stage: str,
    progress: Progress | None,
    only_validation: bool = False,
) -> Spool:
    documents = corpora.documents(corpus, only_validation)
    tick = Tick(progress, stage, None)
    return Spool(path, documents, corpora.validation_fraction(corpus), corpora.shortest(corpus), tick)


def check_split(corpus: str | FilesCorpus | HubCorpus, texts: Spool, train: int, validation: int, dropped: int) -> None:
    """Both parts must hold something."""
    if not len(texts):
        raise DataError(f"the corpus is empty: it has no document that holds text ({texts.short} without any)")
    counts = f"{len(texts)} documents, `validation: {corpora.validation_fraction(corpus)}`"
    if not train:
        why = f", {dropped} dropped as duplicates of validation" if dropped else ""
        raise DataError(f"the training part is empty ({counts}{why}): lower `validation` or give more text")
    if not validation:
        raise DataError(f"the validation part is empty ({counts}): raise `validation` or give more text")
