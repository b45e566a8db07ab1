"""Study files: what they stand for, and the one line that each mistake is answered with."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from depthroute.errors import ConfigError, RunError
from depthroute.study.plan import Study, check_continues, overlay, plan_runs, read_study
from studies import raw_study, write_study

RAW = raw_study(Path("text.txt"))


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    raw = copy.deepcopy(RAW)
    change(raw)
    return raw


def test_every_arm_meets_every_seed_and_whole_pairs_come_early() -> None:
    plan = plan_runs(Study.parse(RAW))
    assert [(run.arm, run.seed) for run in plan] == [("prenorm", 3), ("rd", 3), ("prenorm", 1), ("rd", 1)]
    assert [run.config.seed for run in plan] == [3, 3, 1, 1]
    assert {run.config.threads for run in plan} == {1}
    assert plan[0].config.model.residual != plan[1].config.model.residual
    assert plan[0].config.model.width == plan[1].config.model.width == 32


def test_a_nested_override_merges_and_a_dotted_one_replaces() -> None:
    base = {"a": {"b": {"x": 1, "y": 2}, "c": 3}, "d": 4}
    assert overlay(base, {"a": {"b": {"x": 9}}}) == {"a": {"b": {"x": 9, "y": 2}, "c": 3}, "d": 4}
    assert overlay(base, {"a.b": {"x": 9}}) == {"a": {"b": {"x": 9}, "c": 3}, "d": 4}
    assert overlay(base, {"a.b.z": 7, "e.f": 8}) == {
        "a": {"b": {"x": 1, "y": 2, "z": 7}, "c": 3},
        "d": 4,
        "e": {"f": 8},
    }
    assert base == {"a": {"b": {"x": 1, "y": 2}, "c": 3}, "d": 4}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.update(seedz=[1]), r"seedz: unknown key \(did you mean 'seeds'"),
        (lambda raw: raw.update(seeds=[1]), "seeds: at least 2 seeds are needed, not 1"),
        (lambda raw: raw.update(seeds=[]), "seeds: at least 2 seeds are needed, not 0"),
        (lambda raw: raw.update(seeds=[1, 2, 1]), "seeds: 1 is given twice"),
        (lambda raw: raw.update(seeds=[1, "x"]), "seeds.1: .*'x'"),
        (lambda raw: raw.update(seeds=list(range(41))), "seeds: at most 40"),
        (lambda raw: raw["arms"].pop("rd"), "arms: a comparison needs at least 2 arms, not 1"),
        (lambda raw: raw["arms"].update({"../up": {}}), "'../up' cannot name an arm's directory"),
        (lambda raw: raw["arms"].update({True: {}}), "True cannot name an arm's directory"),
        (lambda raw: raw["arms"].update(rd="rd"), "arms.rd: "),
        (lambda raw: raw.update(workers=0), "workers: "),
        (lambda raw: raw.update(baseline="prenrom"), "no arm 'prenrom' .*did you mean 'prenorm'"),
        (lambda raw: raw["base"].update(seed=1), "base: holds 'seed'"),
        (lambda raw: raw.pop("question"), "question: missing"),
    ],
)
def test_a_wrong_study_file_is_answered_by_one_line(
    change: Callable[[dict[str, Any]], object], message: str, tmp_path: Path
) -> None:
    path = write_study(tmp_path, changed(change))
    with pytest.raises(ConfigError, match=message) as caught:
        read_study(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arm: arm.update(batchs=4), r"arm 'rd': batchs: unknown key \(did you mean 'batch'"),
        (lambda arm: arm.update({"optimizer.matrices.lr": 1.0}), "arm 'rd': optimizer.matrices.lr: unknown key"),
        (lambda arm: arm.update({"tokens.x": 1}), "arm 'rd': tokens.x: tokens is 30720, which has no key x"),
        (lambda arm: arm.update({"model.residual": {"preset": "rdd"}}), "arm 'rd': preset 'rdd' does not exist"),
        (lambda arm: arm.update(seed=4), "arm 'rd': seed: "),
        (
            lambda arm: arm.update({"data.tokenizer": {"bpe": 300}}),
            "arm 'rd': data.tokenizer.* differs from arm 'prenorm'",
        ),
        (lambda arm: arm.update(length=32), "arm 'rd': length differs from arm 'prenorm'"),
    ],
)
def test_a_wrong_arm_is_answered_by_its_name_and_key(change: Callable[[dict[str, Any]], object], message: str) -> None:
    study = Study.parse(changed(lambda raw: change(raw["arms"]["rd"])))
    with pytest.raises(ConfigError, match=message) as caught:
        plan_runs(study)
    assert "\n" not in str(caught.value)


def test_a_study_may_grow_but_not_change_what_is_trained() -> None:
    before = Study.parse(RAW)
    more = Study.parse(changed(lambda raw: (raw["arms"].update(third={}), raw.update(seeds=[1, 3, 9], workers=1))))
    assert check_continues(more, before, "here") == ["adds arm third", "adds seed 9"]
    assert check_continues(before, before, "here") == []
    with pytest.raises(RunError, match="here holds another study: its arm third is not in this one"):
        check_continues(before, more, "here")
    fewer = Study.parse(changed(lambda raw: raw.update(seeds=[3, 2])))
    with pytest.raises(RunError, match="here holds another study: its seed 1 is not in this one"):
        check_continues(fewer, before, "here")
    wider = Study.parse(changed(lambda raw: raw["base"]["model"].update(width=48, hidden=96)))
    with pytest.raises(RunError, match=r"here holds another study: model\.width of its arm prenorm is 32, here 48"):
        check_continues(wider, before, "here")
