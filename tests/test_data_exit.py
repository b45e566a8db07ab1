"""What a user sees of data that cannot be used: one line, and exit code 2."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from texts import config, write_files, write_jsonl
from training import tiny

from depthroute import cli
from depthroute.data import Batches, DataConfig, Dataset, build, evaluation_batches
from depthroute.errors import DataError


def run_of(folder: Path, corpus: dict[str, object]) -> Path:
    """A run config on a corpus of `folder/texts`."""
    data = {"corpus": corpus, "tokenizer": "byte"}
    raw = tiny(folder).model_dump(mode="json") | {"data": data}
    (folder / "run.yaml").write_text(yaml.safe_dump(raw))
    return folder / "run.yaml"


def files_of(folder: Path) -> dict[str, object]:
    return {"files": [f"{folder}/texts/*.txt"], "validation": 0.4}


def build_command(folder: Path, corpus: dict[str, object]) -> list[str]:
    return ["data", "build", str(run_of(folder, corpus)), "--data", str(folder / "data")]


def train_command(folder: Path, corpus: dict[str, object]) -> list[str]:
    return ["train", str(run_of(folder, corpus)), "--run", str(folder / "run"), "--data", str(folder / "data")]


def an_empty_corpus(folder: Path) -> tuple[list[str], str]:
    write_jsonl(folder / "t.jsonl", [])
    return build_command(folder, {"files": [f"{folder}/t.jsonl"]}), "the corpus is empty"


def a_corpus_of_one_token(folder: Path) -> tuple[list[str], str]:
    write_jsonl(folder / "t.jsonl", ["a"])
    return train_command(folder, {"files": [f"{folder}/t.jsonl"]}), "part is empty (1 documents"


def a_file_that_is_not_utf8(folder: Path) -> tuple[list[str], str]:
    (write_files(folder / "texts") / "text1.txt").write_bytes(b"caf\xe9")
    return build_command(folder, files_of(folder)), f"{folder}/texts/text1.txt: not UTF-8 at byte 3"


def a_truncated_shard(folder: Path) -> tuple[list[str], str]:
    shard = built(folder) / "train-00000.bin"
    shard.write_bytes(shard.read_bytes()[:-2])
    return train_command(folder, files_of(folder)), f"{shard}: is "


def an_index_with_a_flipped_bit(folder: Path) -> tuple[list[str], str]:
    index = built(folder) / "index.json"
    content = bytearray(index.read_bytes())
    content[len(content) // 2] ^= 1
    index.write_bytes(content)
    return build_command(folder, files_of(folder)), f"{index}: damaged"


def a_vocabulary_below_the_tokenizer_s(folder: Path) -> tuple[list[str], str]:
    write_files(folder / "texts")
    command = [*train_command(folder, files_of(folder)), "--set", "model.vocab=256"]
    return command, "model.vocab: 256 is smaller than the tokenizer's 257"


def a_place_that_is_read_only(folder: Path) -> tuple[list[str], str]:
    write_files(folder / "texts")
    # Nobody may make a directory there, the superuser included.
    return [*build_command(folder, files_of(folder))[:-1], "/sys/data"], "cannot build /sys/data/texts-byte-"


def built(folder: Path) -> Path:
    write_files(folder / "texts")
    return build(DataConfig.parse({"corpus": files_of(folder), "tokenizer": "byte"}), folder / "data")


@pytest.mark.parametrize(
    "problem",
    [
        an_empty_corpus,
        a_corpus_of_one_token,
        a_file_that_is_not_utf8,
        a_truncated_shard,
        an_index_with_a_flipped_bit,
        a_vocabulary_below_the_tokenizer_s,
        a_place_that_is_read_only,
    ],
)
def test_what_cannot_be_used_is_one_error_line_and_exit_code_2(
    problem: Callable[[Path], tuple[list[str], str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments, message = problem(tmp_path)
    monkeypatch.setattr(sys, "argv", ["depthroute", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert (stopped.value.code, out) == (2, "")
    assert [line.startswith("error: ") for line in lines] == [False] * (len(lines) - 1) + [True]
    assert message in lines[-1]
    assert "Traceback" not in err


def test_a_part_of_one_byte_is_built_and_makes_the_shortest_window_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(name)
    train = Dataset.open(build(config(tmp_path / "*.txt"), tmp_path / "out")).parts["train"]
    assert (train.tokens, train.bytes, train.documents) == (2, 1, 1)
    (batch,) = evaluation_batches(train, length=1, batch=4)
    assert batch.tokens.shape == (1, 1)
    assert batch.targets.tolist() == [[256]]
    with pytest.raises(DataError, match="part 'train' has 2 tokens, one window of length 2 needs 3"):
        Batches(train, length=2, batch=1, seed=0)
