"""Tokenizers: bytes, byte-level BPE trained here, or any `tokenizer.json`; all are kept as a `tokenizer.json`."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import final

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from depthroute.data.config import BpeTokenizer, FileTokenizer
from depthroute.errors import DataError

END = "<|endoftext|>"
USUAL_ENDS = (END, "</s>", "<|end_of_text|>")


@final
class Tokenizer:
    """Text to token ids and back. `vocab` is one more than the highest id, `end` the id that follows a document.

    Markup in a text that looks like a special token is encoded as the plain text that it is.
    """

    def __init__(self, json: str, where: str, end: str | None = None) -> None:
        """Read the text of a `tokenizer.json`; `where` starts an error message."""
        try:
            self._inner = tokenizers.Tokenizer.from_str(json)
        except Exception as error:  # the library raises nothing more precise
            raise DataError(f"{where}: not a tokenizer.json: {error}") from None
        # A saved limit or padding would cut or fill documents without a word.
        self._inner.no_truncation()
        self._inner.no_padding()
        self._inner.encode_special_tokens = True
        ids = self._inner.get_vocab(with_added_tokens=True)
        known = [token for token in ((end,) if end else USUAL_ENDS) if token in ids]
        if not known:
            wanted = f"'{end}'" if end else "none of " + ", ".join(USUAL_ENDS)
            raise DataError(
                f"{where}: no end-of-text token ({wanted} in its vocabulary): name one as `end:` beside `file:`"
            )
        self.end_token = known[0]
        self.end = ids[known[0]]
        self.vocab = max(ids.values()) + 1
        self.json = self._inner.to_str()
        # Byte for byte: a vocabulary without merges, where a token's id is the value of its byte.
        self._bytewise = self.json == byte_json()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.json.encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without any end-of-text token."""
        return self._inner.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._inner.decode(list(ids), skip_special_tokens=False)

    def stream(self, prompt: Sequence[int], ids: Iterable[int]) -> Iterator[str]:
        """The text of ids that follow a prompt, piece by piece; all pieces together are what `decode` says of them.

        A character is held back until all of its bytes are there, or the ids end.
        """
        stream, every = decoders.DecodeStream(skip_special_tokens=False), list(prompt)
        said = sum(len(stream.step(self._inner, token) or "") for token in prompt)
        for token in ids:
            every.append(token)
            piece = stream.step(self._inner, token)
            if piece:
                said += len(piece)
                yield piece
        if rest := self.decode(every)[said:]:
            yield rest

    def encode_pieces(self, pieces: list[bytes]) -> list[np.ndarray]:
        """Ids of pieces of UTF-8, an array each."""
        if self._bytewise:
            return [np.frombuffer(piece, np.uint8) for piece in pieces]
        texts = [piece.decode() for piece in pieces]
        return [np.array(e.ids, np.uint32) for e in self._inner.encode_batch_fast(texts, add_special_tokens=False)]


def byte_json() -> str:
    """The byte tokenizer: ids 0 to 255 are the bytes, 256 is the end of text."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    # The characters that stand for bytes in every byte-level tokenizer.
    names = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    inner = tokenizers.Tokenizer(models.BPE(vocab={names[byte]: byte for byte in range(256)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    return inner.to_str()


def train_bpe(texts: Iterable[str], vocabulary: int) -> str:
    """The `tokenizer.json` of a byte-level BPE; the same texts give the same bytes."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    reached = inner.get_vocab_size()
    if reached < vocabulary:
        raise DataError(
            f"tokenizer.bpe: the training part supports a vocabulary of {reached}, not {vocabulary}: "
            f"ask for {reached} or fewer, or give more text"
        )
    return inner.to_str()


def make(config: str | BpeTokenizer | FileTokenizer, training: Iterator[bytes]) -> Tokenizer:
    """The tokenizer that a config names; `training` are pieces of the training part, read by BPE alone."""
    if isinstance(config, FileTokenizer):
        return Tokenizer(read_json(config), config.file, config.end)
    if isinstance(config, BpeTokenizer):
        return Tokenizer(train_bpe((piece.decode() for piece in training), config.bpe), "the trained tokenizer")
    return Tokenizer(byte_json(), "the byte tokenizer")


def read_json(config: FileTokenizer) -> str:
    try:
        return Path(config.file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"tokenizer file {config.file}: cannot be read: {error}") from None


def fingerprint(config: str | BpeTokenizer | FileTokenizer) -> dict[str, object]:
    """What identifies a tokenizer before it is made."""
    if isinstance(config, FileTokenizer):
        return {"sha256": hashlib.sha256(read_json(config).encode()).hexdigest(), "end": config.end}
    return {"bpe": config.bpe} if isinstance(config, BpeTokenizer) else {"byte": True}


def readable_name(config: str | BpeTokenizer | FileTokenizer) -> str:
    if isinstance(config, BpeTokenizer):
        return f"bpe{config.bpe}"
    return Path(config.file).stem if isinstance(config, FileTokenizer) else "byte"
