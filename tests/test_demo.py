"""The demo: what a person sees, and that it proves what it says."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from depthroute.cli.demo import demo
from depthroute.data import build
from depthroute.errors import RunError
from depthroute.study.demo import (
    check_learned,
    demo_study,
    demo_text,
    query_norms,
    unigram_entropy,
    validation_tokens,
)
from depthroute.study.plan import Study, plan_runs
from studies import depthroute, raw_study, write_text


def test_the_demo_learns_says_so_and_shows_its_table_at_once_the_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = depthroute("demo", "--quick", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    place = tmp_path / "runs/demo-quick"
    results = json.loads((place / "results.json").read_text())
    assert len(results["runs"]) == 8
    for arm in ("prenorm", "attnres-block", "rd", "slr-block"):
        assert f"\n  {arm} " in first.stdout
    assert "learned: the worst run has" in first.stdout
    assert "routes moved: every query began at zero" in first.stdout
    assert "decide nothing" in first.stdout
    assert "depthroute study status runs/demo-quick" in first.stdout
    assert "8 runs" in first.stderr

    plan = plan_runs(demo_study(demo_text(quick=True)))
    worst = max(run["held_out"]["validation"]["nll"] for run in results["runs"])
    entropy = unigram_entropy(validation_tokens(plan[0].config, tmp_path / "data"))
    assert worst < entropy - 0.25
    assert f"{worst:.3f} nats a token; token frequencies alone would give {entropy:.3f}" in first.stdout
    for run in plan:
        norms = query_norms(run.directory(place))
        assert bool(norms) == (run.arm != "prenorm")
        assert all(norm > 0 for norm in norms.values())

    monkeypatch.chdir(tmp_path)
    demo(None, Path("data"), True)
    second = capsys.readouterr()
    assert second.out == first.stdout
    assert "8 of 8 runs are complete" in second.err
    assert "data:" not in second.err


def test_the_demo_can_be_planned_in_both_sizes() -> None:
    long, quick = (plan_runs(demo_study(demo_text(quick=quick))) for quick in (False, True))
    assert (len(long), long[0].config.steps, long[0].config.model.layers) == (8, 240, 6)
    assert (len(quick), quick[0].config.steps, quick[0].config.model.layers) == (8, 80, 4)


def test_the_unigram_entropy_is_that_of_the_frequencies() -> None:
    assert unigram_entropy(np.array([3, 3, 7, 7])) == pytest.approx(np.log(2))
    assert unigram_entropy(np.array([1, 1, 1, 2])) == pytest.approx(-(0.75 * np.log(0.75) + 0.25 * np.log(0.25)))
    assert unigram_entropy(np.array([5, 5])) == 0.0


def entry(nll: float) -> dict[str, Any]:
    return {"runs": [{"directory": "runs/rd/3", "held_out": {"validation": {"nll": nll}}}]}


def test_a_run_that_learned_nothing_or_a_dead_route_is_an_error(tmp_path: Path) -> None:
    plan = plan_runs(Study.parse(raw_study(write_text(tmp_path))))
    build(plan[0].config.data, tmp_path / "data")
    for run in plan:
        model = run.directory(tmp_path) / "model"
        model.mkdir(parents=True)
        reads = {"residual.reads.2.query": np.full(4, run.seed / 4, np.float32)} if run.arm == "rd" else {}
        save_file({"norm.weight": np.zeros(4, np.float32), **reads}, model / "model.safetensors")
    entropy = unigram_entropy(validation_tokens(plan[0].config, tmp_path / "data"))
    lines = check_learned(entry(entropy - 1), plan, tmp_path, tmp_path / "data")
    assert f"would give {entropy:.3f}" in lines[0]
    assert "the smallest norm now is 0.500 (residual.reads.2.query of rd seed 1)" in lines[1]
    with pytest.raises(RunError, match=r"runs/rd/3: its NLL of .* learned nothing from context"):
        check_learned(entry(entropy - 0.1), plan, tmp_path, tmp_path / "data")
    dead = plan[1].directory(tmp_path) / "model/model.safetensors"
    save_file({name: 0 * value for name, value in load_file(dead).items()}, dead)
    with pytest.raises(RunError, match=r"residual\.reads\.2\.query of rd seed 3 is still zero"):
        check_learned(entry(entropy - 1), plan, tmp_path, tmp_path / "data")
