"""Benchmarks: their statistics, and that they run and say what they measured; no time is judged here."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from commands import refusal

from depthroute.bench import block, peers, read, step
from depthroute.bench.table import text
from depthroute.bench.timing import interleaved, median, ratio


@pytest.fixture(autouse=True)
def traceable(as_a_user):
    """The compiler cannot trace the tests' shape checks."""


def test_candidates_take_turns():
    order = []
    seconds = interleaved({name: lambda name=name: order.append(name) for name in "ab"}, 4)
    assert order == ["a", "b"] * (len(order) // 2)
    assert [len(found) for found in seconds.values()] == [4, 4]


def test_the_interval_of_a_median_covers_it_as_often_as_it_says():
    draws = np.random.default_rng(0).lognormal(size=(4000, 20))
    covered = np.mean([low <= 1 <= high for _, low, high in map(median, draws.tolist())])
    assert 0.945 <= covered <= 0.97  # 95.9 % by the binomial distribution


def test_a_ratio_is_that_of_rounds():
    assert ratio([2.0, 6.0, 30.0], [1.0, 2.0, 3.0]).value == 3.0


def test_a_read_is_timed_against_a_copy_and_the_einsum_in_both_directions():
    rows = read.measure(read.Case(16, 3, 2, 8, "float32"), ["reference", "native"], 5)
    timed = [(row["direction"], row["reader"]) for row in rows]
    assert timed == [
        (direction, reader)
        for direction in ("forward", "forward+backward")
        for reader in ("reference", "native", read.EINSUM)
    ]
    # native: a logit a query, source and token; a scale a source and token; an lse a query and token.
    saved = {row["reader"]: row["saved_bytes"] for row in rows}
    assert saved["native"] == 4 * 8 * (2 * 3 + 3 + 2)
    assert saved[read.EINSUM] > 3 * 8 * 16 * 4
    assert "reference" in text({"reads": rows})


def test_peers_that_are_not_installed_are_listed_and_one_that_differs_is_not_timed(monkeypatch):
    found, absent = peers.installed()
    assert {*absent} | {name.split()[0] for name in found} == {*peers.LOADERS}
    monkeypatch.setattr(peers, "installed", lambda: ({"wrong 1.0": lambda query, sources, eps: sources[0]}, {}))
    rows = read.measure(read.Case(16, 3, 1, 8, "float32"), ["reference"], 5)
    assert "wrong 1.0" not in [row["reader"] for row in rows if "direction" in row]
    assert "differs from the specification" in next(row["absent"] for row in rows if row["reader"] == "wrong 1.0")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_block_is_timed_in_both_schedules_and_directions_beside_the_einsum(dtype):
    rows = block.measure(block.Block(16, 3, 4, 8, dtype), ["native"], 5)
    named = [("einsum", "direct"), ("native", "direct"), ("native", "two_phase")]
    assert [(row["reader"], row["schedule"]) for row in rows] == 2 * named
    assert all(row["faster_than_direct"].low <= row["faster_than_direct"].value for row in rows)
    saved = {(row["reader"], row["schedule"]): row["saved_bytes"] for row in rows}
    assert saved["native", "direct"] < saved["native", "two_phase"] < saved["einsum", "direct"]
    assert "4 sites over 3" in text({"blocks": rows})


def test_an_einsum_whose_stacks_are_too_large_is_listed_as_absent(monkeypatch):
    monkeypatch.setattr(block, "STACKS", 1000)
    *rows, absent = block.measure(block.Block(16, 3, 4, 8, "float32"), ["native"], 5)
    assert all(row["faster_than_einsum"] is None and row["reader"] == "native" for row in rows)
    assert absent["absent"].startswith("left out: its stacks of 3 sources would take 0.0 GiB")
    assert "einsum: left out" in text({"blocks": [*rows, absent]})


def test_every_reader_of_a_block_reads_the_same():
    shape, generator = block.Block(16, 3, 4, 8, "float32"), torch.Generator().manual_seed(0)
    given = list(torch.randn(7, 8, 16, generator=generator))
    queries = list(torch.randn(4, 16, generator=generator))
    expected = block.einsums(shape, queries, given)
    for two_phase in (False, True):
        found = block.reads_of(shape, "reference", two_phase, queries, given)()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_step_is_timed_against_prenorms_with_the_bytes_that_both_keep():
    shape = {"vocab": 64, "width": 32, "layers": 4, "heads": 2, "hidden": 48}
    (row,) = step.measure(["rd"], shape, 2, 1, 16, 5, compile=False)
    assert (row["impl"], row["reads"]) == ("native", "direct")
    assert 1 < row["saved_ratio"] < 2
    assert "rd" in text({"steps": [row]})


def test_the_command_writes_what_it_prints(tmp_path):
    command = [sys.executable, "-m", "depthroute", "bench"]
    small = ["--width", "16", "--sources", "3", "--queries", "1", "--tokens", "8", "--impl", "native", "--rounds", "5"]
    options = {"capture_output": True, "text": True, "check": False}
    done = subprocess.run([*command, "read", *small, "--json", "--out", tmp_path / "read.json"], **options)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "read.json").read_text())
    assert json.loads(done.stdout) == written
    assert None not in written["about"]["allocator"].values()
    wrong = subprocess.run([*command, "step", "--preset", "rdd"], **options)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "rd" in wrong.stderr


@pytest.mark.usefixtures("as_a_user")
def test_where_figures_cannot_go_is_said_before_anything_is_measured(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(read, "measure", None)
    for place, message in [
        ("", "is empty; name a file"),
        (tmp_path, "is a directory; name a file in it"),
        (".", "is a directory; name a file in it"),
        (tmp_path / "nothing/figures.json", "nothing is no directory; make it first"),
        ("/sys/figures.json", "/sys cannot be written: "),
    ]:
        assert message in refusal(capsys, "bench", "read", "--out", place)
    assert "less than or equal to 1024" in refusal(capsys, "bench", "read", "--threads", 100000)
