import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import config, prose, write_files, write_jsonl

from depthroute.data import Dataset, build
from depthroute.data.config import FilesCorpus
from depthroute.data.files import CHUNK, LINES, documents, find, text_chunks
from depthroute.data.spool import PIECE, Spool, Tick
from depthroute.errors import DataError


def texts_of(dataset: Dataset, name: str) -> list[str]:
    part = dataset.parts[name]
    return dataset.tokenizer.decode(part.read(0, part.tokens).tolist()).split("<|endoftext|>")[:-1]


def built(root: Path, *files: Path | str, **rest: Any) -> Dataset:
    return Dataset.open(build(config(*files, **rest), root))


def refused(root: Path, *files: Path | str, **rest: Any) -> str:
    """The error of a build, which must be one line and leave nothing but the lock."""
    with pytest.raises(DataError) as caught:
        build(config(*files, **rest), root / "out")
    assert "\n" not in str(caught.value)
    assert {path.name for path in (root / "out").glob("*")} <= {".lock"}
    return str(caught.value)


def test_text_files_are_documents_split_by_file_with_every_byte_kept(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "texts", count=10)
    (folder / "text3.txt").write_bytes("windows\r\nlines and a tail \n\n ü".encode())
    dataset = built(tmp_path, folder / "*.txt", validation=0.3)
    both = texts_of(dataset, "train") + texts_of(dataset, "validation")
    assert sorted(both) == sorted(path.read_bytes().decode() for path in folder.iterdir())
    assert (dataset.parts["train"].documents, dataset.parts["validation"].documents) == (7, 3)
    assert dataset.parts["train"].bytes == sum(len(text.encode()) for text in texts_of(dataset, "train"))
    assert dataset.parts["train"].tokens == dataset.parts["train"].bytes + 7


def test_the_result_follows_from_the_texts_and_not_from_where_they_lie(tmp_path: Path) -> None:
    here = write_files(tmp_path / "a" / "texts")
    there = write_files(tmp_path / "b" / "deeper" / "texts")
    one = built(tmp_path / "one", here / "*.txt")
    other = built(tmp_path / "other", *sorted(there.iterdir(), reverse=True))
    assert one.directory.name == other.directory.name
    assert one.digest == other.digest
    (there / "text0.txt").write_text("changed")
    assert build(config(there / "*.txt"), tmp_path / "other") != other.directory


def test_at_least_one_file_lies_on_each_side(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "texts", count=2)
    for fraction in (0.01, 0.99):
        dataset = built(tmp_path, folder / "*.txt", validation=fraction)
        assert [part.documents for part in dataset.parts.values()] == [1, 1]


def test_one_long_text_is_split_into_runs_of_whole_lines(tmp_path: Path) -> None:
    text = prose(40_000)
    (tmp_path / "long.txt").write_text(text, encoding="utf-8")
    assert "one file cannot be split by file" in refused(tmp_path, tmp_path / "long.txt")
    dataset = built(tmp_path, tmp_path / "long.txt", split="document", validation=0.2)
    runs = texts_of(dataset, "train") + texts_of(dataset, "validation")
    assert all(
        run.endswith("\n") and LINES <= len(run.encode()) < LINES + 400 for run in runs if not text.endswith(run)
    )
    corpus = FilesCorpus(files=[str(tmp_path / "long.txt")], split="document")
    assert "".join(b"".join(document.chunks).decode() for document in documents(corpus, False)) == text


def test_equal_documents_of_a_jsonl_file_lie_on_one_side(tmp_path: Path) -> None:
    texts = [prose(5, number % 25) for number in range(100)]
    dataset = built(tmp_path, write_jsonl(tmp_path / "t.jsonl", texts), validation=0.4)
    train, validation = set(texts_of(dataset, "train")), set(texts_of(dataset, "validation"))
    assert train | validation == set(texts)
    assert not train & validation
    assert dataset.parts["train"].documents == 100 - 4 * len(validation)
    assert dataset.index.parts["train"].dropped == {"short": 0, "duplicates": 0}


def test_a_training_document_that_validation_holds_too_is_dropped_and_counted(tmp_path: Path) -> None:
    files = [write_jsonl(tmp_path / f"{name}.jsonl", ["same", f"only {name}", "", " \n"]) for name in "abcd"]
    dataset = built(tmp_path, *files, split="file", validation=0.25)
    assert len(texts_of(dataset, "train")) == 3
    assert "same" not in texts_of(dataset, "train")
    assert texts_of(dataset, "validation")[0] == "same"
    assert dataset.index.parts["train"].dropped == {"short": 8, "duplicates": 3}


def test_a_held_out_document_that_training_holds_is_dropped_and_counted(tmp_path: Path) -> None:
    main = write_jsonl(tmp_path / "main.jsonl", [prose(9, number) for number in range(50)])
    other = write_jsonl(tmp_path / "other.jsonl", [*(prose(9, number) for number in range(50)), "new", "newer"])
    held_out = {"other": {"files": [str(other)], "validation": 1.0}}
    dataset = built(tmp_path, main, held_out=held_out, tokenizer={"bpe": 280})
    assert list(dataset.parts) == ["train", "validation", "other"]
    train, held = texts_of(dataset, "train"), texts_of(dataset, "other")
    assert held[-2:] == ["new", "newer"]
    assert not set(train) & set(held)
    assert dataset.index.parts["other"].dropped == {"short": 0, "leaks": len(train)}
    same = {"other": {"files": [str(main)], "validation": 1.0}}
    without = built(tmp_path, main, held_out=same, tokenizer={"bpe": 280})
    assert without.tokenizer_digest == dataset.tokenizer_digest
    assert texts_of(without, "other") == texts_of(without, "validation")


def test_parquet_rows_are_documents_like_those_of_jsonl(tmp_path: Path) -> None:
    texts = [prose(5, number) for number in range(600)]
    pyarrow.parquet.write_table(pyarrow.table({"body": [*texts, None], "n": [*range(601)]}), tmp_path / "t.parquet")
    from_rows = built(tmp_path / "a", tmp_path / "t.parquet", field="body")
    from_lines = built(tmp_path / "b", write_jsonl(tmp_path / "t.jsonl", [*texts, None], "body"), field="body")
    for name in ("train", "validation"):
        assert texts_of(from_rows, name) == texts_of(from_lines, name)
    assert from_rows.index.parts["train"].dropped["short"] == 1


@given(st.text(alphabet=st.sampled_from("ab \n中é😀"), min_size=1, max_size=50), st.integers(1, 4000))
@settings(max_examples=40, deadline=None)
def test_pieces_of_a_long_document_join_to_it(tmp_path_factory: pytest.TempPathFactory, text: str, times: int) -> None:
    folder = tmp_path_factory.mktemp("pieces")
    (folder / "t.txt").write_bytes((text * times + "x").encode())
    corpus = FilesCorpus(files=[str(folder / "t.txt")], validation=1.0)
    spool = Spool(folder / "spool", documents(corpus, False), 1.0, 1, Tick(None, "reading", None))
    pieces = list(spool.pieces(spool.sides.nonzero()[0]))
    assert b"".join(piece for piece, _ in pieces) == (text * times + "x").encode()
    assert [last for _, last in pieces] == [False] * (len(pieces) - 1) + [True]
    assert all(0 < len(piece) <= PIECE and piece.decode() for piece, _ in pieces)


def test_characters_across_chunks_survive(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"a" + "中".encode() * CHUNK)
    chunks = list(text_chunks(tmp_path / "t.txt"))
    assert len(chunks) > 2
    assert "".join(chunk.decode() for chunk in chunks) == "a" + "中" * CHUNK


def test_bytes_that_are_not_utf8_are_named_with_their_offset(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "texts", count=3)
    (folder / "text1.txt").write_bytes(b"a" * (CHUNK + 7) + b"\xff" + b"b" * 10)
    assert refused(tmp_path, folder / "*.txt").startswith(f"{folder}/text1.txt: not UTF-8 at byte {CHUNK + 7}")
    (folder / "text1.txt").write_bytes(b"good " + "中".encode()[:2])
    assert "text1.txt: not UTF-8 at byte 5: the file ends inside a character" in refused(tmp_path, folder / "*.txt")
    (tmp_path / "t.jsonl").write_bytes(b'{"text": "a"}\n{"text": "\xe9"}\n')
    assert "t.jsonl: not UTF-8 at byte 24" in refused(tmp_path, tmp_path / "t.jsonl")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"', "t.jsonl:2: not JSON: "),
        ("", "t.jsonl:2: not JSON: "),
        ("[" * 100_000, "t.jsonl:2: not JSON: "),
        ('["a"]', "t.jsonl:2: not a JSON object but list"),
        ('{"txt": "a"}', "t.jsonl:2: no field 'text' (did you mean 'txt'? choices: txt)"),
        ('{"text": 3}', "t.jsonl:2: `text` is not a string but int"),
        ('{"text": "\\ud800"}', "t.jsonl:2: `text` holds half a surrogate pair at character 0"),
    ],
)
def test_a_wrong_line_is_named_with_its_number(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "t.jsonl").write_text(json.dumps({"text": "fine"}) + "\n" + line + "\n")
    assert message in refused(tmp_path, tmp_path / "t.jsonl")


def test_parquet_problems_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"n": [1, 2], "words": ["a", "b"]}), path)
    assert "t.parquet: no column 'text' (choices: n, words)" in refused(tmp_path, path)
    assert "t.parquet: row 1: `n` is not a string but int" in refused(tmp_path, path, field="n")
    good, page = path.read_bytes(), pyarrow.parquet.read_metadata(path).row_group(0).column(1).dictionary_page_offset
    path.write_bytes(good[: len(good) // 2])
    assert "t.parquet: not a readable Parquet file" in refused(tmp_path, path, field="words")
    path.write_bytes(good[:page] + b"\xff" * 30 + good[page + 30 :])
    assert "t.parquet: not a readable Parquet file" in refused(tmp_path, path, field="words")


@pytest.mark.parametrize(
    ("corpus", "hidden", "extra"),
    [
        ({"files": ["t.parquet"]}, "pyarrow", "pip install 'depthroute[parquet]'"),
        ({"hub": "some/set", "documents": 3}, "datasets", "pip install 'depthroute[hf]'"),
    ],
)
def test_a_missing_library_says_what_to_install(tmp_path: Path, corpus: object, hidden: str, extra: str) -> None:
    (tmp_path / "t.parquet").write_bytes(b"")
    program = (
        f"import sys; sys.modules[{hidden!r}] = None; from pathlib import Path; from depthroute.data import *\n"
        f"try: build(DataConfig.parse({{'corpus': {corpus!r}, 'tokenizer': 'byte'}}), Path('out'))\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.startswith("DataError ")
    assert extra in done.stdout


def test_files_that_cannot_make_a_corpus_are_refused_in_one_line(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "texts", count=3)
    (folder / "empty").mkdir()
    (tmp_path / "a.dat").write_text("x")
    (tmp_path / "b.jsonl").write_text("")
    (tmp_path / "c.txt").write_text(" \n")
    assert f"'{folder}/*.md': no regular file matches" in refused(tmp_path, folder / "*.txt", folder / "*.md")
    assert f"{folder}: is a directory; name the files in it, such as {folder}/*.txt" in refused(tmp_path, folder)
    assert "no regular file matches" in refused(tmp_path, folder / "missing")
    assert "files end in '.dat': say `format: text`, `jsonl` or" in refused(tmp_path, tmp_path / "a.dat")
    assert "files end in '.jsonl', '.txt': say" in refused(tmp_path, tmp_path / "b.jsonl", tmp_path / "c.txt")
    assert "the corpus is empty" in refused(tmp_path, tmp_path / "b.jsonl")
    assert "the corpus is empty" in refused(tmp_path, tmp_path / "c.txt", validation=1.0)
    assert "raise `validation`" in refused(tmp_path, folder / "*.txt", validation=0.0)
    assert "lower `validation`" in refused(tmp_path, folder / "*.txt", validation=1.0)
    held_out = {"other": {"files": [str(folder / "*.txt")], "validation": 0.0}}
    assert "held_out.other: empty (0 documents" in refused(tmp_path, folder / "*.txt", held_out=held_out)


def test_a_training_part_of_duplicates_alone_is_refused_with_their_number(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("the same")
    assert "2 dropped as duplicates of validation" in refused(tmp_path, tmp_path / "*.txt")


def test_a_file_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "texts", count=3)
    Path(os.fsdecode(os.fsencode(folder) + b"/bad\xff.txt")).write_text("text")
    assert r"bad\udcff.txt': its name is not UTF-8: rename it" in refused(tmp_path, folder / "*.txt")


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "texts", count=3)
    found = find(FilesCorpus(files=[str(folder / "*.txt"), str(folder / "text1.txt"), f"{folder}/**/*.txt"]))
    assert [file.name for file in found] == ["text0.txt", "text1.txt", "text2.txt"]
