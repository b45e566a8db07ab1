import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import config, prose, write_files

from depthroute.data import Dataset, FileTokenizer, build
from depthroute.data.tokenizer import Tokenizer, byte_json, make, train_bpe
from depthroute.errors import DataError

BYTE = Tokenizer(byte_json(), "byte")
BPE = Tokenizer(train_bpe([prose(4000)], 300), "bpe")


@given(st.text(max_size=60))
@settings(max_examples=60, deadline=None)
def test_ids_of_the_byte_tokenizer_are_the_bytes_however_it_is_asked(text: str) -> None:
    assert BYTE.encode(text) == list(text.encode())
    assert BYTE.encode_pieces([text.encode()])[0].tolist() == list(text.encode())
    assert BYTE.decode(BYTE.encode(text)) == text


@given(st.text(max_size=60))
@settings(max_examples=60, deadline=None)
def test_bpe_gives_back_every_text(text: str) -> None:
    assert BPE.decode(BPE.encode(text)) == text
    assert BPE.encode_pieces([text.encode()])[0].tolist() == BPE.encode(text)


def test_the_byte_vocabulary_is_257_with_the_end_of_text_last() -> None:
    assert (BYTE.vocab, BYTE.end, BYTE.end_token) == (257, 256, "<|endoftext|>")
    assert BYTE.decode([104, 105, 256]) == "hi<|endoftext|>"


@pytest.mark.parametrize("tokenizer", [BYTE, BPE], ids=["byte", "bpe"])
def test_an_end_of_text_marker_inside_a_text_is_plain_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a<|endoftext|>b")
    assert tokenizer.end not in ids
    assert tokenizer.end not in tokenizer.encode_pieces([b"a<|endoftext|>b"])[0]
    assert tokenizer.decode(ids) == "a<|endoftext|>b"


def test_the_same_text_trains_the_same_bytes_in_every_process() -> None:
    program = (
        "import sys; sys.path.insert(0, 'tests'); from texts import prose\n"
        "from depthroute.data.tokenizer import train_bpe\n"
        "sys.stdout.write(train_bpe([prose(4000)], 300))"
    )
    for threads, hash_seed in (("1", "1"), ("3", "2")):
        environment = {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": hash_seed, "PATH": ""}
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            check=True,
            env=environment,
            cwd=Path(__file__).parents[1],
        )
        assert done.stdout.decode() == train_bpe([prose(4000)], 300)


def test_a_vocabulary_that_the_text_cannot_fill_is_an_error_with_the_size_it_can() -> None:
    with pytest.raises(DataError, match=r"tokenizer.bpe: the training part supports a vocabulary of 2\d\d, not 5000"):
        train_bpe(["hello hello"], 5000)


def saved(path: Path, end: str, truncated: bool = False) -> Path:
    inner = tokenizers.Tokenizer.from_str(train_bpe([prose(4000)], 300).replace("<|endoftext|>", end))
    if truncated:
        inner.enable_truncation(4)
        inner.enable_padding(length=8)
    inner.save(str(path))
    return path


@pytest.mark.parametrize("end", ["<|endoftext|>", "</s>", "<|end_of_text|>"])
def test_usual_end_of_text_tokens_are_found(tmp_path: Path, end: str) -> None:
    made = make(FileTokenizer(file=str(saved(tmp_path / "tokenizer.json", end))), iter(()))
    assert (made.end_token, made.end, made.vocab) == (end, 0, 300)


def test_another_end_of_text_token_must_be_named(tmp_path: Path) -> None:
    path = saved(tmp_path / "tokenizer.json", "<fin>")
    with pytest.raises(DataError, match=r"no end-of-text token \(none of .*\): name one as `end:` beside `file:`"):
        make(FileTokenizer(file=str(path)), iter(()))
    with pytest.raises(DataError, match=r"no end-of-text token \('<eos>' in its vocabulary\)"):
        make(FileTokenizer(file=str(path), end="<eos>"), iter(()))
    assert make(FileTokenizer(file=str(path), end="<fin>"), iter(())).end == 0


def test_a_limit_or_padding_saved_in_a_tokenizer_file_does_not_touch_documents(tmp_path: Path) -> None:
    made = make(FileTokenizer(file=str(saved(tmp_path / "tokenizer.json", "</s>", truncated=True))), iter(()))
    assert made.decode(made.encode(prose(100))) == prose(100)
    assert len(made.encode("a")) == 1
    assert json.loads(made.json)["truncation"] is None


def test_a_tokenizer_file_that_is_none_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(DataError, match=r"tokenizer.json: not a tokenizer.json: ") as caught:
        make(FileTokenizer(file=str(tmp_path / "tokenizer.json")), iter(()))
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=r"tokenizer file nowhere.json: cannot be read: .*No such file"):
        make(FileTokenizer(file="nowhere.json"), iter(()))


def test_a_vocabulary_above_65536_is_stored_in_four_bytes(tmp_path: Path) -> None:
    whole = json.loads(train_bpe([prose(4000)], 300))
    whole["added_tokens"][0]["id"] = 70_000
    whole["model"]["vocab"]["<|endoftext|>"] = 70_000
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    files = write_files(tmp_path / "texts")
    dataset = Dataset.open(
        build(config(files / "*.txt", tokenizer={"file": str(tmp_path / "tokenizer.json")}), tmp_path)
    )
    train = dataset.parts["train"]
    assert (dataset.vocab, dataset.index.dtype) == (70_001, "<u4")
    assert train.read(0, train.tokens)[-1] == 70_000
    assert train.read(0, 1).dtype == np.uint32
