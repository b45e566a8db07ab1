"""Documents of local text, JSONL and Parquet files, as chunks of UTF-8 that are never larger than they must be."""

import glob
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from depthroute.data.config import FilesCorpus
from depthroute.errors import DataError
from depthroute.schema import nearest

CHUNK = 1 << 20
LINES = 8 << 10
FORMATS = {
    **dict.fromkeys((".txt", ".text", ".md", ".rst"), "text"),
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    ".parquet": "parquet",
}


class Document(NamedTuple):
    """`chunks` joined are the UTF-8 text. `validation` None: the hash of the text decides."""

    chunks: Iterable[bytes]
    validation: bool | None


class File(NamedTuple):
    """`name` is relative to the folder that all files of the corpus share, so it is the same on every machine."""

    name: str
    path: Path


def find(corpus: FilesCorpus) -> list[File]:
    """The files of a corpus, sorted by name, each once."""
    found: set[Path] = set()
    for pattern in corpus.files:
        matches = [pattern] if os.path.isfile(pattern) else glob.glob(pattern, recursive=True)
        paths = {Path(match).absolute() for match in matches if os.path.isfile(match)}
        if not paths:
            if os.path.isdir(pattern):
                raise DataError(f"{pattern}: is a directory; name the files in it, such as {pattern.rstrip('/')}/*.txt")
            raise DataError(f"'{pattern}': no regular file matches (looked from {Path.cwd()})")
        found |= paths
    shared = Path(os.path.commonpath([path.parent for path in found]))
    check_names(found)
    return sorted(File(path.relative_to(shared).as_posix(), path) for path in found)


def check_names(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            path.as_posix().encode()
        except UnicodeEncodeError:
            raise DataError(f"{str(path)!a}: its name is not UTF-8: rename it") from None


def file_format(corpus: FilesCorpus, files: list[File]) -> str:
    if corpus.format:
        return corpus.format
    suffixes = sorted({file.path.suffix for file in files})
    formats = {FORMATS.get(suffix) for suffix in suffixes}
    if len(formats) != 1 or None in formats:
        raise DataError(
            f"files end in {', '.join(repr(suffix) for suffix in suffixes)}: say `format: text`, `jsonl` or `parquet`"
        )
    return FORMATS[suffixes[0]]


def fingerprint(corpus: FilesCorpus) -> dict[str, object]:
    """What identifies the corpus: how it is read, and every file's relative name and sha256."""
    files = find(corpus)
    kind = file_format(corpus, files)
    return {
        "format": kind,
        "field": None if kind == "text" else corpus.field,
        "split": split_of(corpus, kind),
        "validation": corpus.validation,
        "files": [[file.name, sha256(file.path)] for file in files],
    }


def split_of(corpus: FilesCorpus, kind: str) -> str:
    return corpus.split or ("file" if kind == "text" else "document")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def contents(folder: Path) -> list[list[str]]:
    """Relative name and sha256 of every file below a folder, sorted."""
    paths = [Path(place, name) for place, _, names in os.walk(folder, followlinks=True) for name in names]
    check_names(paths)
    return sorted([path.relative_to(folder).as_posix(), sha256(path)] for path in paths if path.is_file())


def documents(corpus: FilesCorpus, only_validation: bool) -> Iterator[Document]:
    """Documents in the order of the files. `only_validation` leaves out files that are known to be for training."""
    files = find(corpus)
    kind = file_format(corpus, files)
    by_file = split_of(corpus, kind) == "file"
    chosen = validation_files(files, corpus.validation) if by_file else set()
    read = {"jsonl": json_lines, "parquet": parquet_rows}.get(kind)
    for file in files:
        side = file.name in chosen if by_file else None
        if only_validation and side is False:
            continue
        if read is not None:
            for text in read(file.path, corpus.field):
                yield Document((text,), side)
        elif by_file:
            yield Document(text_chunks(file.path), side)
        else:
            for run in line_runs(file.path):
                yield Document((run,), side)


def validation_files(files: list[File], fraction: float) -> set[str]:
    """Names of the files that are held out: the first by the hash of the name, at least one left on each side."""
    if fraction in (0.0, 1.0):
        return {file.name for file in files} if fraction else set()
    if len(files) == 1:
        raise DataError(f"{files[0].path}: one file cannot be split by file: give more files, or say `split: document`")
    count = min(max(round(fraction * len(files)), 1), len(files) - 1)
    return set(sorted((file.name for file in files), key=lambda name: hashlib.sha256(name.encode()).digest())[:count])


def text_chunks(path: Path) -> Iterator[bytes]:
    """A file in chunks of about a megabyte that end between characters; not UTF-8 is an error with its byte offset."""
    kept, offset = b"", 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            chunk = kept + chunk
            good = valid_prefix(chunk, path, offset)
            kept, offset = chunk[good:], offset + good
            if good:
                yield chunk[:good]
    if kept:
        raise DataError(f"{path}: not UTF-8 at byte {offset}: the file ends inside a character")


def valid_prefix(chunk: bytes, path: Path, offset: int) -> int:
    """Length of the whole characters that `chunk` (at byte `offset` of the file) starts with."""
    try:
        chunk.decode()
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data" and error.end == len(chunk):
            return error.start
        raise DataError(f"{path}: not UTF-8 at byte {offset + error.start}: convert the file to UTF-8") from None
    return len(chunk)


def line_runs(path: Path) -> Iterator[bytes]:
    """Runs of whole lines of about `LINES` bytes; a longer line is a run of its own, cut between characters."""
    waiting = b""
    for chunk in text_chunks(path):
        waiting += chunk
        start = 0
        while end := waiting.find(b"\n", start + LINES - 1) + 1:
            yield waiting[start:end]
            start = end
        waiting = waiting[start:]
        if len(waiting) >= CHUNK:
            yield waiting
            waiting = b""
    if waiting:
        yield waiting


def json_lines(path: Path, field: str) -> Iterator[bytes]:
    with path.open("rb") as file:
        offset = 0
        for number, line in enumerate(file, start=1):
            valid = valid_prefix(line, path, offset)
            if valid < len(line):
                raise DataError(f"{path}: not UTF-8 at byte {offset + valid}: the line ends inside a character")
            offset += len(line)
            yield encoded(json_field(line, field, f"{path}:{number}"), f"{path}:{number}: `{field}`")


def json_field(line: bytes, field: str, where: str) -> object:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        detail = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise DataError(f"{where}: not JSON: {detail}") from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: not a JSON object but {type(row).__name__}")
    if field not in row:
        raise DataError(f"{where}: no field '{field}' {nearest(field, sorted(row))}")
    return row[field]


def encoded(text: object, where: str) -> bytes:
    """A field's string as UTF-8; a null counts as an empty document."""
    if text is None:
        return b""
    if not isinstance(text, str):
        raise DataError(f"{where} is not a string but {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where} holds half a surrogate pair at character {error.start}, which is no text") from None


def parquet_rows(path: Path, field: str) -> Iterator[bytes]:
    """The strings of one column, row by row.

    Memory does not grow with the file or its row groups, but holds a page (at least 1024 rows, as pyarrow writes it),
    the dictionary of a row group where the column has one, and 256 rows.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"{path}: reading Parquet needs pyarrow: pip install 'depthroute[parquet]'") from None
    row = 0
    try:
        # Without a buffer size, or with pre-buffering, the column is read a whole row group at a time.
        reader = pyarrow.parquet.ParquetFile(path, page_checksum_verification=True, pre_buffer=False, buffer_size=CHUNK)
        with reader as table:
            if field not in table.schema_arrow.names:
                raise DataError(f"{path}: no column '{field}' {nearest(field, sorted(table.schema_arrow.names))}")
            for batch in table.iter_batches(batch_size=256, columns=[field]):
                for text in batch.column(0).to_pylist():
                    row += 1
                    yield encoded(text, f"{path}: row {row}: `{field}`")
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file: {str(error).splitlines()[0]}") from None
