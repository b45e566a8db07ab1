"""The bench of a GPU, as far as a machine without one can tell."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from commands import answer

from depthroute.bench import gpu
from depthroute.errors import RunError
from depthroute.ops import IMPLEMENTATIONS, Attended, reference


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so_and_nothing_is_written(tmp_path: Path):
    with pytest.raises(RunError, match="there is no GPU here") as raised:
        gpu.run(tmp_path / "out")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_every_implementation_is_checked_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu, "WIDTHS", (1024,))
    found = gpu.run(tmp_path)
    assert {row["impl"] for row in found["rows"]} == set(IMPLEMENTATIONS)
    assert all(row["seconds"] or row["refused"] for row in found["rows"])


def test_a_check_tells_an_error_or_a_refusal(monkeypatch: pytest.MonkeyPatch):
    cpu = torch.device("cpu")
    right = gpu.check("reference", 16, cpu, tokens=3)
    assert 0.0 < right["error"] <= gpu.TOLERANCE
    refused = gpu.check("fla", 16, cpu, tokens=3)
    assert refused["error"] is None
    assert "impl 'fla'" in refused["refused"]


def test_what_a_peers_kernel_raises_is_written_down_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch):
    def broken(*arguments: object) -> list[torch.Tensor]:
        raise AssertionError

    monkeypatch.setattr(gpu, "read_and_gradients", broken)
    assert gpu.check("fla", 16, torch.device("cpu"), tokens=3)["refused"] == "AssertionError: it says nothing"
    rows = gpu.timed(broken, 16, torch.device("cpu"), 1.0, list(IMPLEMENTATIONS))
    assert [row["impl"] for row in rows] == list(IMPLEMENTATIONS)
    assert {row["refused"] for row in rows} == {"AssertionError: it says nothing"}


@pytest.mark.parametrize("factor", [1.1, float("nan")])
def test_an_implementation_that_is_wrong_is_written_down_and_the_others_are_timed(
    factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def scaled(queries: Any, keys: Any, values: Any, *others: Any, **options: Any) -> Attended:
        mixed, lse = reference.attend(queries, keys, values, *others, **options)
        return Attended(mixed if values[0].shape[-1] == 16 else factor * mixed, lse)

    names = {"reference": reference, "peer": SimpleNamespace(attend=scaled, merge=reference.merge)}
    monkeypatch.setattr("depthroute.ops.IMPLEMENTATIONS", names)
    for name, instead in {
        "IMPLEMENTATIONS": names,
        "DEVICE": "cpu",
        "WIDTHS": (16, 128),
        "COORDINATES": 2**10,
        "STEP_TOKENS": 1024,
        "step_work": gpu.read_work,
        "captured": lambda work: work(),
        "seconds_of": lambda graph: 0.001,
        "copied_bytes_per_second": lambda device: 1e9,
    }.items():
        monkeypatch.setattr(gpu, name, instead)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    found = answer(capsys, "bench", "gpu", "--out", tmp_path)
    assert found.code == 2
    assert found.err.startswith("error: bench gpu: peer at width 128 is ")
    assert found.err.count("\n") == 1
    cells = [line.split() for line in found.out.splitlines()[1:8]]
    assert [line[-1] for line in cells[4:]] == ["wrong"] * 3
    assert not any("wrong" in line for line in cells[:4])
    kept = json.loads((tmp_path / gpu.RESULTS).read_text())
    errors = [one["error"] for one in kept["checks"] if one["wrong"]]
    assert errors == [pytest.approx(0.1, rel=0.1) if factor == 1.1 else None]
    assert {row["impl"] for row in kept["rows"] if row["seconds"] and row["width"] == 128} == {"reference"}
    assert {row["impl"] for row in kept["rows"] if row["seconds"] and row["width"] == 16} == {"reference", "peer"}


def test_where_nothing_can_be_written_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(RunError, match=r"out: cannot be written; choose another --out"):
        gpu.run(tmp_path / "out")


def test_the_table_shows_times_shares_and_what_was_refused():
    row = {"width": 1024, "work": "read", "copy_share": 0.5, "refused": None, "wrong": None}
    rows = [
        {**row, "impl": "one", "seconds": 0.00125},
        {**row, "impl": "other", "seconds": None, "copy_share": None, "refused": "impl 'other' does not cover this"},
        {**row, "impl": "one", "work": "step", "seconds": 0.5, "copy_share": None},
    ]
    text = gpu.table({"device": "a GPU", "copy_bytes_per_second": 4e12, "rows": rows}).splitlines()
    assert text[0] == "a GPU, milliseconds and share of a copy, which moves 4,000 GB/s"
    assert [line.split() for line in text[1:4]] == [
        ["width", "work", "one", "other"],
        ["1024", "read", "1.250", "50%", "-"],
        ["1024", "step", "500.000", "-"],
    ]
    assert text[4] == "-  impl 'other' does not cover this"
