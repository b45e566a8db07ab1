import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from texts import config, write_files

from depthroute.data import Dataset, build, read_index
from depthroute.data.shards import digest
from depthroute.errors import DataError


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shards")
    return build(config(write_files(root / "texts") / "*.txt", tokenizer={"bpe": 300}), root / "out", shard_tokens=1000)


@pytest.fixture
def copy(directory: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(directory, tmp_path / directory.name))


def test_the_directory_stands_alone_and_holds_nothing_else(directory: Path) -> None:
    dataset = Dataset.open(directory)
    assert {path.name for path in directory.iterdir()} == {*dataset.index.files, "index.json"}
    assert {"tokenizer.json", "train-00000.bin", "train-00001.bin", "train.offsets"} < set(dataset.index.files)
    assert dataset.tokenizer.digest == dataset.tokenizer_digest
    assert dataset.vocab == 300
    assert len(dataset.digest) == 64
    assert str(directory.parents[1]) not in (directory / "index.json").read_text()


def test_reads_across_shards_are_the_bytes_on_disk(directory: Path) -> None:
    train = Dataset.open(directory).parts["train"]
    whole = np.concatenate([np.fromfile(path, "<u2") for path in sorted(directory.glob("train-*.bin"))])
    assert len(whole) == train.tokens > 1500
    for start, stop in ((0, train.tokens), (990, 1010), (1000, 1001), (999, 1000), (train.tokens - 1, train.tokens)):
        assert np.array_equal(train.read(start, stop), whole[start:stop])
    assert (directory / "train-00000.bin").stat().st_size == 2000
    ends = np.flatnonzero(whole == Dataset.open(directory).tokenizer.end)
    assert np.array_equal(ends + 1, train.offsets[1:])


@pytest.mark.parametrize(
    "name", ["train-00000.bin", "train-00001.bin", "validation.offsets", "validation-00000.bin", "tokenizer.json"]
)
def test_a_truncated_flipped_or_missing_file_is_named(copy: Path, name: str) -> None:
    path = copy / name
    good = path.read_bytes()
    flipped = [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in (0, len(good) // 2, len(good) - 1)]
    damages = [good[:-1], b"", good + b"\0", *flipped]
    for damage in damages:
        path.write_bytes(damage)
        with pytest.raises(DataError, match=f"{name}: .*delete {copy} and build again") as caught:
            Dataset.open(copy)
        assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(DataError, match=f"{name}: missing: delete"):
        Dataset.open(copy)
    path.write_bytes(good)
    assert Dataset.open(copy).parts["train"].tokens > 0


def test_no_bit_of_the_index_can_change_unseen(copy: Path) -> None:
    path = copy / "index.json"
    good = path.read_bytes()
    for position in range(0, len(good), 9):
        path.write_bytes(good[:position] + bytes([good[position] ^ 1 << position % 8]) + good[position + 1 :])
        with pytest.raises(DataError, match=r"index.json: "):
            read_index(copy)
    for length in (0, 1, len(good) // 2, len(good) - 3):
        path.write_bytes(good[:length])
        with pytest.raises(DataError, match=r"index.json: damaged"):
            read_index(copy)


@pytest.mark.parametrize("content", ["[]", "3", "null", "{}", '"x"', "[" * 50_000, '{"checksum": 3}'])
def test_an_index_that_is_no_index_is_one_line(copy: Path, content: str) -> None:
    (copy / "index.json").write_text(content)
    with pytest.raises(DataError, match=r"index.json: damaged, .*: delete .* and build again"):
        read_index(copy)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format", 2, "has format 2, this version reads 1"),
        ("dtype", "<f4", "damaged, dtype: "),
        ("parts", {}, None),
    ],
)
def test_an_index_rewritten_with_its_checksum_is_still_checked(
    copy: Path, key: str, value: object, message: str | None
) -> None:
    body = json.loads((copy / "index.json").read_text())
    del body["checksum"]
    body[key] = value
    (copy / "index.json").write_text(json.dumps({"checksum": digest(body), **body}))
    if message is None:
        assert read_index(copy).parts == {}
        return
    with pytest.raises(DataError, match=message):
        read_index(copy)


def test_sizes_that_contradict_the_index_are_found(copy: Path) -> None:
    body = json.loads((copy / "index.json").read_text())
    del body["checksum"]
    body["parts"]["train"]["tokens"] += 1
    (copy / "index.json").write_text(json.dumps({"checksum": digest(body), **body}))
    with pytest.raises(DataError, match="the sizes of part 'train' contradict its index"):
        Dataset.open(copy)


def test_a_directory_without_an_index_is_not_taken_for_data(tmp_path: Path, directory: Path) -> None:
    with pytest.raises(DataError, match=r"holds no built data \(index.json is missing\)"):
        Dataset.open(tmp_path)
    with pytest.raises(DataError, match="holds no built data"):
        Dataset.open(tmp_path / "nowhere")


def test_a_complete_build_is_returned_without_being_touched(tmp_path: Path) -> None:
    data = config(write_files(tmp_path / "texts") / "*.txt")
    first = build(data, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in first.iterdir()}
    assert build(data, tmp_path / "out") == first
    assert {path: path.stat().st_mtime_ns for path in first.iterdir()} == before
    (first / "index.json").write_text("{}")
    with pytest.raises(DataError, match=f"delete {first} and build again"):
        build(data, tmp_path / "out")


def test_other_data_under_the_same_name_is_not_returned(tmp_path: Path) -> None:
    data = config(write_files(tmp_path / "texts") / "*.txt")
    directory = build(data, tmp_path / "out")
    body = json.loads((directory / "index.json").read_text())
    body["key"] = body["key"][:12] + "0" * 52
    del body["checksum"]
    (directory / "index.json").write_text(json.dumps({"checksum": digest(body), **body}))
    with pytest.raises(DataError, match="holds other data under the same name"):
        build(data, tmp_path / "out")


def test_progress_is_told_for_every_stage(tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    data = config(write_files(tmp_path / "texts") / "*.txt", tokenizer={"bpe": 300})
    build(data, tmp_path / "out", lambda *line: told.append(line))
    assert list(dict.fromkeys(stage for stage, _, _ in told)) == [
        "reading",
        "training the tokenizer",
        "encoding train",
        "encoding validation",
    ]
    assert all(done > 0 and (total is None or done <= total) for _, done, total in told)
