from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import config, prose, write_jsonl

from depthroute.data import Batches, Dataset, Part, build, evaluation_batches
from depthroute.data.shards import PartWriter
from depthroute.errors import ArgumentError, DataError


def part(folder: Path, lengths: list[int], shard_tokens: int = 1000) -> Part:
    """A part whose tokens count up from 0 within it, its documents' end tokens too."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = PartWriter(folder, "train", np.dtype("<u2"), 60_000, shard_tokens)
    for length in lengths:
        start = writer.tokens
        writer.add(np.arange(start, start + length // 2), False)
        writer.add(np.arange(start + length // 2, start + length), True)
    entry = writer.finish(sum(lengths), {})
    return Part(folder, "train", entry, np.dtype("<u2"))


@given(
    lengths=st.lists(st.integers(1, 40), min_size=2, max_size=12),
    length=st.integers(1, 9),
    batch=st.integers(1, 7),
    seed=st.integers(0, 2**64 - 1),
    shard_tokens=st.integers(3, 50),
)
@settings(max_examples=40, deadline=None)
def test_every_window_comes_exactly_once_an_epoch_and_in_another_order_each(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], length: int, batch: int, seed: int, shard_tokens: int
) -> None:
    made = part(tmp_path_factory.mktemp("part"), lengths, shard_tokens)
    if made.tokens < length + 1:
        with pytest.raises(DataError):
            Batches(made, length=length, batch=batch, seed=seed)
        return
    batches = Batches(made, length=length, batch=batch, seed=seed)
    everything = made.read(0, made.tokens).astype(np.int64)
    ends = np.cumsum(np.array(lengths) + 1)
    numbers = range(-(-3 * batches.windows // batch))
    read = [batches[number] for number in numbers]
    tokens = np.concatenate([one.tokens for one in read])
    targets = np.concatenate([one.targets for one in read])
    documents = np.concatenate([one.documents for one in read])
    expected = np.stack([everything[n * length : n * length + length + 1] for n in range(batches.windows)])
    order = np.argsort(expected[:, 0], kind="stable")
    for epoch in range(3):
        mine = slice(epoch * batches.windows, (epoch + 1) * batches.windows)
        rows = np.concatenate([tokens[mine], targets[mine][:, -1:]], axis=1)
        assert sorted(rows.tolist()) == sorted(expected[order].tolist())
    assert np.array_equal(tokens[:, 1:], targets[:, :-1])
    positions = np.where(tokens == 60_000, -1, tokens)
    real = positions >= 0
    assert np.array_equal(documents[real], np.searchsorted(ends, positions[real], side="right"))


def test_a_batch_follows_from_seed_and_number_alone(tmp_path: Path) -> None:
    made = part(tmp_path, [700, 301, 50])
    one, other = (Batches(made, length=8, batch=5, seed=3) for _ in range(2))
    ahead = {number: one[number] for number in (90, 3, 41, 0, 27)}
    for number, batch in ahead.items():
        assert all(np.array_equal(a, b) for a, b in zip(batch, other[number], strict=True))
        assert batch.tokens.dtype == batch.targets.dtype == batch.documents.dtype == np.int64
        assert batch.tokens.shape == batch.documents.shape == (5, 8)
    assert not np.array_equal(one[0].tokens, Batches(made, length=8, batch=5, seed=4)[0].tokens)


def test_the_order_is_the_same_as_ever(tmp_path: Path) -> None:
    """A changed order would make old runs unrepeatable, so these numbers must not be touched."""
    batches = Batches(part(tmp_path, [99]), length=9, batch=11, seed=7)
    assert (batches[0].tokens[:, 0] // 9).tolist() == FIRST_EPOCH
    assert (batches[1].tokens[:, 0] // 9).tolist() == SECOND_EPOCH


FIRST_EPOCH = [8, 4, 1, 6, 3, 2, 7, 5, 9, 10, 0]
SECOND_EPOCH = [3, 9, 1, 6, 2, 5, 4, 8, 0, 7, 10]


def test_an_end_of_text_token_belongs_to_the_document_that_it_ends(tmp_path: Path) -> None:
    batch = Batches(part(tmp_path, [3, 2, 4]), length=11, batch=1, seed=0)[0]
    assert batch.tokens.tolist() == [[0, 1, 2, 60_000, 4, 5, 60_000, 7, 8, 9, 10]]
    assert batch.documents.tolist() == [[0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2]]


def test_evaluation_reads_all_windows_in_order_and_the_last_batch_may_be_smaller(tmp_path: Path) -> None:
    made = part(tmp_path, [100])
    read = list(evaluation_batches(made, length=9, batch=4))
    assert [len(batch.tokens) for batch in read] == [4, 4, 3]
    assert np.concatenate([batch.tokens[:, 0] for batch in read]).tolist() == list(range(0, 99, 9))


def test_fewer_evaluation_tokens_are_spread_over_the_part(tmp_path: Path) -> None:
    read = list(evaluation_batches(part(tmp_path, [100]), length=9, batch=4, tokens=50))
    assert sum(batch.tokens.size for batch in read) == 45
    assert np.concatenate([batch.tokens[:, 0] for batch in read]).tolist() == [0, 18, 36, 54, 72]


def test_a_part_that_is_too_short_says_the_numbers(tmp_path: Path) -> None:
    made = part(tmp_path, [9])
    assert Batches(made, length=9, batch=1, seed=0).windows == 1
    with pytest.raises(DataError, match="part 'train' has 10 tokens, one window of length 10 needs 11"):
        Batches(made, length=10, batch=1, seed=0)
    with pytest.raises(DataError, match="has 10 tokens"):
        evaluation_batches(made, length=10, batch=1)


def test_arguments_that_make_no_batch_are_refused(tmp_path: Path) -> None:
    made = part(tmp_path, [50])
    for wrong in ({"length": 0}, {"batch": 0}, {"seed": -1}, {"seed": 2**64}):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            Batches(made, **{"length": 4, "batch": 2, "seed": 0, **wrong})
    with pytest.raises(ArgumentError, match="batch number"):
        Batches(made, length=4, batch=2, seed=0)[-1]
    with pytest.raises(ArgumentError, match="tokens: 3 is less than one window of length 4"):
        evaluation_batches(made, length=4, batch=2, tokens=3)


def test_batches_decode_to_the_text_that_was_built(tmp_path: Path) -> None:
    texts = [prose(30, number) for number in range(40)]
    source = write_jsonl(tmp_path / "texts.jsonl", texts)
    dataset = Dataset.open(build(config(source, tokenizer={"bpe": 300}, validation=0.3), tmp_path, shard_tokens=100))
    train = dataset.parts["train"]
    batches = list(evaluation_batches(train, length=16, batch=8))
    ids = np.concatenate([batch.tokens for batch in batches]).reshape(-1)
    documents = np.concatenate([batch.documents for batch in batches]).reshape(-1)
    for document in np.unique(documents)[:-1]:
        text = dataset.tokenizer.decode(ids[documents == document].tolist())
        assert text.removesuffix("<|endoftext|>") in texts
        assert text.endswith("<|endoftext|>")
