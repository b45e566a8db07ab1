"""Data sets of the hub, as far as they can be met without a network: local folders, and the library's refusals."""

import os
import sys
import types
from pathlib import Path

import pytest
from texts import prose, write_jsonl

from depthroute.data import DataConfig, Dataset, build
from depthroute.data.config import HubCorpus
from depthroute.data.corpora import documents, fingerprint
from depthroute.errors import DataError

ROWS = [prose(5, number) for number in range(300)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set in a local folder; the library keeps its files in `tmp_path` and stays off the network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    write_jsonl(tmp_path / "a" / "set" / "t.jsonl", ROWS)
    return tmp_path / "a" / "set"


def config(hub: Path | str, **corpus: object) -> DataConfig:
    return DataConfig.parse(
        {"corpus": {"hub": str(hub), "documents": 200, "validation": 0.2, **corpus}, "tokenizer": "byte"}
    )


def texts_of(dataset: Dataset) -> list[str]:
    ids = [part.read(0, part.tokens).tolist() for part in dataset.parts.values()]
    return [text for one in ids for text in dataset.tokenizer.decode(one).split("<|endoftext|>")[:-1]]


def test_rows_of_a_data_set_are_streamed_up_to_the_limit(folder: Path, tmp_path: Path) -> None:
    dataset = Dataset.open(build(config(folder), tmp_path / "out"))
    assert sorted(texts_of(dataset)) == sorted(ROWS[:200])
    assert str(tmp_path) not in (dataset.directory / "index.json").read_text()


def test_what_a_data_set_cannot_give_is_named(folder: Path, tmp_path: Path) -> None:
    for corpus, message in (
        (config(folder, documents=301), f"hub '{folder}': has 300 documents, `documents` asks for 301"),
        (config(folder, field="txt"), f"hub '{folder}': no field 'txt' (did you mean 'text'? choices: text)"),
        (config(folder, split="test"), f"hub '{folder}': ValueError: "),
        (config("nobody/no-such-set"), "hub 'nobody/no-such-set': "),
    ):
        with pytest.raises(DataError) as caught:
            build(corpus, tmp_path / "out")
        assert str(caught.value).startswith(message)
        assert "\n" not in str(caught.value)


def test_a_folder_is_identified_by_its_contents_and_not_by_its_place(folder: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "b" / "elsewhere" / "t.jsonl", ROWS)
    one, other = (HubCorpus(hub=str(place), documents=9) for place in (folder, tmp_path / "b" / "elsewhere"))
    assert fingerprint(one) == fingerprint(other)
    same_size = (folder / "t.jsonl").read_text().replace("a", "b", 1)
    (folder / "t.jsonl").write_text(same_size)
    assert fingerprint(one) != fingerprint(other)
    (folder / os.fsdecode(b"bad\xff.jsonl")).touch()
    with pytest.raises(DataError, match="its name is not UTF-8: rename it"):
        fingerprint(one)


def test_a_revision_is_asked_of_the_library_and_identifies_the_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a network could give another revision, so something else stands in for the library here."""
    asked = []

    def load_dataset(*names: str | None, **rest: object) -> object:
        asked.append((names, rest))
        return types.SimpleNamespace(take=lambda count: [{"text": "a"}] * count)

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    pinned = HubCorpus(hub="some/set", subset="s", revision="0a1b", documents=2)
    assert [b"".join(document.chunks) for document in documents(pinned)] == [b"a", b"a"]
    assert asked == [(("some/set", "s"), {"split": "train", "revision": "0a1b", "streaming": True})]
    assert fingerprint(pinned) != fingerprint(pinned.model_copy(update={"revision": None}))
