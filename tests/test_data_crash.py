"""Builds that are killed, starved or run twice at once, and the memory that they take: real processes throughout."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from texts import config, prose, write_files, write_jsonl

from depthroute.data import Dataset, build
from depthroute.errors import DataError

BUILD = """
import json, resource, sys
from pathlib import Path
from depthroute.data import DataConfig, build
from depthroute.errors import DataError
raw, root, limit = json.loads(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
print("ready", flush=True)
try:
    print(build(DataConfig.parse(raw), root))
except DataError as error:
    print("DataError", error)
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


def start(raw: object, root: Path, limit: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILD, json.dumps(raw), str(root), str(limit)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def visible(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if not path.name.startswith(".")]


def test_a_build_killed_at_any_moment_leaves_nothing_visible_and_the_next_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "texts", count=12, words=10_000)
    data = config(folder / "*.txt", tokenizer={"bpe": 300})
    began = time.monotonic()
    expected = build(data, tmp_path / "whole")
    needed = time.monotonic() - began
    draw = random.Random(5)
    root = tmp_path / "killed"
    root.mkdir()
    leftovers = 0
    for attempt in range(5):
        process = start(data.model_dump(mode="json"), root)
        old = set(root.glob(".partial-*/*"))
        while process.poll() is None and set(root.glob(".partial-*/*")) <= old:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, attempt) / 5 * needed)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        leftovers += len(list(root.glob(".partial-*")))
        for directory in visible(root):
            assert contents(directory) == contents(expected)
            shutil.rmtree(directory)
    assert leftovers
    (root / ".partial-of-other-data").mkdir()
    (root / ".partial-of-other-data" / "corpus.spool").write_text("half")
    directory = build(data, root)
    assert directory.name == expected.name
    assert contents(directory) == contents(expected)
    assert {path.name for path in root.iterdir()} == {".lock", expected.name}


def test_two_builds_of_the_same_data_at_once_share_one_result(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "texts", count=8, words=20_000)
    data = config(folder / "*.txt", tokenizer={"bpe": 300})
    processes = [start(data.model_dump(mode="json"), tmp_path / "out") for _ in range(3)]
    results = {process.communicate(timeout=60)[0].splitlines()[1] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert results == {str(directory) for directory in visible(tmp_path / "out")}
    assert contents(Path(results.pop())) == contents(build(data, tmp_path / "alone"))


def test_a_file_that_cannot_grow_ends_the_build_in_one_line_with_nothing_left(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: writing fails in the same way, in the middle of a file."""
    folder = write_files(tmp_path / "texts", count=4, words=20_000)
    whole = build(config(folder / "*.txt"), tmp_path / "whole")
    text = sum(path.stat().st_size for path in folder.iterdir())
    train = (whole / "train-00000.bin").stat().st_size
    assert text < train
    for limit in (text // 2, (text + train) // 2):
        process = start(config(folder / "*.txt").model_dump(mode="json"), tmp_path / "out", limit)
        line = process.communicate(timeout=60)[0].splitlines()[1]
        assert line.startswith(f"DataError cannot build {tmp_path}/out/texts-byte-")
        assert "File too large" in line
        assert {path.name for path in (tmp_path / "out").iterdir()} == {".lock"}


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "texts")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=f"cannot build {tmp_path}/file/deeper/texts-byte-.*: Not a directory"):
        build(config(folder / "*.txt"), tmp_path / "file" / "deeper")
    # Nobody may make a directory there, the superuser included.
    with pytest.raises(DataError, match=r"cannot build /sys/data/texts-byte-.*: (Operation not permitted|Permission)"):
        build(config(folder / "*.txt"), Path("/sys/data"))


def test_an_interrupted_build_cleans_up(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "texts")

    def interrupt(stage: str, done: int, total: int | None) -> None:
        if stage == "encoding train":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(config(folder / "*.txt"), tmp_path / "out", interrupt)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {".lock"}


def write_text(folder: Path, megabytes: int) -> None:
    chunk = (prose(20_000) + "\n").encode()
    with (folder / "long.txt").open("wb") as file:
        for _ in range(megabytes * 1_000_000 // len(chunk)):
            file.write(chunk)
    (folder / "short.txt").write_text("something else")


def documents_of(megabytes: int) -> list[str]:
    """Different documents of a kilobyte."""
    text = prose(20_000)
    return [f"{number} {text[number * 7 % 100_000 :][:1000]}" for number in range(megabytes * 1000)]


def write_lines(folder: Path, megabytes: int) -> None:
    write_jsonl(folder / "t.jsonl", documents_of(megabytes))


def write_row_groups(folder: Path, megabytes: int) -> None:
    """Two row groups, so that these grow with the file; uncompressed, for these texts resemble each other."""
    table = pyarrow.table({"text": documents_of(megabytes)})
    rest = {"use_dictionary": False, "compression": "none"}
    pyarrow.parquet.write_table(table, folder / "t.parquet", row_group_size=megabytes * 500, **rest)


@pytest.mark.parametrize(
    ("write", "small", "large", "growth"),
    [(write_text, 15, 150, 13), (write_lines, 10, 50, 10), (write_row_groups, 10, 50, 20)],
)
def test_memory_does_not_grow_with_the_text(
    tmp_path: Path, write: Callable[[Path, int], None], small: int, large: int, growth: int
) -> None:
    peaks = {}
    for megabytes in (small, large):
        folder = tmp_path / str(megabytes)
        folder.mkdir()
        write(folder, megabytes)
        raw = config(folder / "*.*", validation=0.5).model_dump(mode="json")
        process = start(raw, folder / "out")
        out = process.communicate(timeout=120)[0].splitlines()
        peaks[megabytes] = int(out[2]) / 1000
        dataset = Dataset.open(Path(out[1]))
        assert sum(part.bytes for part in dataset.parts.values()) > (megabytes - 1) * 1e6
    assert peaks[large] - peaks[small] < growth, peaks
