"""What a run config says under `data:`: a corpus, a tokenizer and held-out domains."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from depthroute.schema import Schema, nearest

NAMED_CORPORA = ("python-docs", "python-source")


class FilesCorpus(Schema):
    """Local files. `files` are paths or globs (`**` recurses), relative to the current directory.

    Text: a document is a file (`split: file`), or a run of whole lines of about 8 KiB (`split: document`, the way to
    split one long file). JSONL and Parquet: a document is the string under `field` of a line or row, and
    `split: document` puts it on the side that the hash of its content says, `split: file` on the side of its file.
    `validation` is the fraction of files or documents that is held out; 1 holds out everything.
    `format` follows from the file names where it is left out. Reading takes the memory of, for text, a megabyte or a
    line run; for JSONL, the longest line; for Parquet, a page, the dictionary of a row group, and 256 rows.
    """

    files: list[str] = Field(min_length=1)
    format: Literal["text", "jsonl", "parquet"] | None = None
    field: str = "text"
    split: Literal["file", "document"] | None = None
    validation: float = Field(default=0.1, ge=0, le=1)


class HubCorpus(Schema):
    """The first `documents` rows of a Hugging Face data set (a hub name or a local folder), streamed.

    `revision` is a branch, tag or commit; null means the hub's current one. A set on the hub is identified by these
    words alone, so only a commit as `revision` fixes what it holds: built data are used again even if the set has
    changed since. A local folder is identified by the contents of all its files. How much memory the stream takes is
    up to the `datasets` library.
    """

    hub: str
    subset: str | None = None
    revision: str | None = None
    split: str = "train"
    field: str = "text"
    documents: int = Field(ge=1)
    validation: float = Field(default=0.01, ge=0, le=1)


class BpeTokenizer(Schema):
    """A byte-level BPE of `bpe` tokens, trained on the training part."""

    bpe: int

    @field_validator("bpe")
    @classmethod
    def has_room_for_every_byte(cls, bpe: int) -> int:
        if bpe < 257:
            raise ValueError(f"a vocabulary of {bpe} is too small: 256 bytes and the end-of-text token need 257")
        return bpe


class FileTokenizer(Schema):
    """Any `tokenizer.json`. `end` names its end-of-text token where that is none of the usual ones."""

    file: str
    end: str | None = None


def corpus_from(raw: object) -> str | FilesCorpus | HubCorpus:
    """The corpus that plain data describes, chosen by the key that is there."""
    if isinstance(raw, FilesCorpus | HubCorpus):
        return raw
    if isinstance(raw, str):
        if raw not in NAMED_CORPORA:
            raise ValueError(f"unknown corpus '{raw}' {nearest(raw, NAMED_CORPORA)}")
        return raw
    if isinstance(raw, Mapping) and ("files" in raw) != ("hub" in raw):
        return FilesCorpus.parse(raw) if "files" in raw else HubCorpus.parse(raw)
    raise ValueError(f"give a corpus name ({', '.join(NAMED_CORPORA)}), a mapping with `files`, or one with `hub`")


def tokenizer_from(raw: object) -> str | BpeTokenizer | FileTokenizer:
    """The tokenizer that plain data describes, chosen by the key that is there."""
    if isinstance(raw, BpeTokenizer | FileTokenizer):
        return raw
    if raw == "byte":
        return "byte"
    if isinstance(raw, Mapping) and ("bpe" in raw) != ("file" in raw):
        return BpeTokenizer.parse(raw) if "bpe" in raw else FileTokenizer.parse(raw)
    raise ValueError("give `byte`, `{bpe: VOCABULARY}` or `{file: tokenizer.json}`")


Corpus = Annotated[str | FilesCorpus | HubCorpus, BeforeValidator(corpus_from)]
TokenizerConfig = Annotated[str | BpeTokenizer | FileTokenizer, BeforeValidator(tokenizer_from)]


class DataConfig(Schema):
    """The corpus that is trained on, its tokenizer, and further domains of which only the validation part is kept."""

    corpus: Corpus = "python-docs"
    tokenizer: TokenizerConfig = BpeTokenizer(bpe=1024)
    held_out: dict[str, Corpus] = Field(default_factory=dict)

    @field_validator("held_out")
    @classmethod
    def names_can_be_file_names(cls, held_out: dict[str, Corpus]) -> dict[str, Corpus]:
        for name in held_out:
            if name in ("train", "validation") or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
                raise ValueError(
                    f"'{name}' cannot name a held-out domain: use letters, digits, - and _, not a part's name"
                )
        return held_out
