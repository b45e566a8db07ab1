"""Study files: what they stand for, and the one line that each mistake is answered with."""

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from depthroute import config
from depthroute.errors import ConfigError
from depthroute.ops import resolve
from depthroute.study.cells import Planned, overlay
from depthroute.study.execute import at_a_time, environment
from depthroute.study.plan import Contrast, Study, contrasts, plan_runs, read_study
from depthroute.study.prereg import built_impl
from depthroute.study.tuning import tuning_runs
from depthroute.train import device
from studies import raw_study, write_study

RAW = raw_study(Path("text.txt"))
STUDIES = sorted((Path(__file__).parents[1] / "studies").glob("*.yaml"))
TUNING = {"seeds": [7], "tokens": 5120, "held_out": "spare", "grid": {"optimizer.queries": [0.001, 0.003]}}
SIZES = {"two": {"model.layers": 2}, "three": {"model.layers": 3}}


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
        (lambda raw: raw["arms"].update({"../up": {}}), "'../up' cannot name a directory"),
        (lambda raw: raw["arms"].update({True: {}}), "True cannot name a directory"),
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


def full() -> dict[str, Any]:
    """A study that uses every key."""
    raw = copy.deepcopy(RAW)
    spare = {"files": ["spare.txt"]}
    raw["base"]["data"]["held_out"] = {"spare": spare, "same": spare, "more": {"files": ["more.txt"]}}
    return raw | {
        "cross": {"size": SIZES, "rate": {"low": {"optimizer": {"head": 0.001}}, "high": None}},
        "contrasts": [{"arm": "rd", "primary": True, "margin": 0.01, "at": {"size": "two"}}],
        "tuning": copy.deepcopy(TUNING),
        "replicates": [{"arm": "rd", "seed": 3, "at": {"size": "two", "rate": "low"}}, {"arm": "rd", "seed": 3}],
    }


def test_every_arm_meets_every_combination_of_levels_and_replicates_come_last() -> None:
    study = Study.parse(full())
    plan = plan_runs(study)
    assert len(plan) == 2 * 2 * 2 * 2 + 1 + 4
    assert [run.place.as_posix() for run in plan[:3]] == [
        "runs/prenorm/size=two/rate=low/3",
        "runs/rd/size=two/rate=low/3",
        "runs/prenorm/size=two/rate=high/3",
    ]
    assert [(run.cell, run.replicate) for run in plan[16:]] == [
        ("rd|size=two|rate=low", 1),
        ("rd|size=two|rate=low", 2),
        ("rd|size=two|rate=high", 1),
        ("rd|size=three|rate=low", 1),
        ("rd|size=three|rate=high", 1),
    ]
    assert plan[16].place.as_posix() == "runs/rd/size=two/rate=low/3.replicate-1"
    assert plan[16].config == plan[1].config
    assert (plan[1].config.model.layers, plan[1].config.optimizer.head) == (2, 0.001)
    assert (plan[6].config.model.layers, plan[6].config.optimizer.head) == (3, 0.01)
    places = {place for run in plan for place in (run.directory(Path()), run.log(Path()), run.config_file(Path()))}
    assert len(places) == 3 * len(plan)


def test_a_contrast_stands_for_every_combination_that_it_leaves_open() -> None:
    assert contrasts(Study.parse(RAW)) == [Contrast("rd", "prenorm", "validation", False, None, {})]
    assert [contrast.at for contrast in contrasts(Study.parse(full()))] == [
        {"size": "two", "rate": "low"},
        {"size": "two", "rate": "high"},
    ]


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("optimizer.matrices.learning_rate", [0.01, 0.02]),
        ("model.residual.blocks", [1, 2]),
        ("model.residual.rank", [4, 8]),
        ("impl", ["auto", "reference"]),
        ("tokens", [10240, 20480]),
        ("model.embedding_std", [0.1, 1.0]),
    ],
)
def test_any_key_of_the_configuration_can_be_crossed(key: str, values: list[Any]) -> None:
    raw = copy.deepcopy(RAW)
    raw["arms"] = {"slr": {"model.residual.preset": "slr-block"}, "plr": {"model.residual.preset": "plr-block"}}
    raw["base"]["model"]["residual"] = {"preset": "slr-block", "blocks": 2, "rank": 2}
    raw["cross"] = {"factor": {f"level-{value}": {key: value} for value in values}}
    plan = plan_runs(Study.parse(raw))
    assert [run.cell for run in plan[:4]] == [f"{arm}|factor=level-{value}" for value in values for arm in raw["arms"]]
    plain = [config.flatten(run.config.model_dump(mode="json")) for run in plan]
    changed_keys = [
        {name for name in {**one, **other} if one.get(name) != other.get(name)}
        for one, other in ((plain[0], plain[2]), (plain[1], plain[3]))
    ]
    assert all(len(changed) == 1 for changed in changed_keys)


def test_runs_are_as_many_at_a_time_as_the_study_says_or_as_there_are_gpus_or_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = plan_runs(Study.parse(RAW))[0].config
    cores = len(os.sched_getaffinity(0))
    assert at_a_time(run) == cores
    assert at_a_time(run.model_copy(update={"threads": 10 * cores})) == 1
    monkeypatch.setattr(device, "choose", lambda _: torch.device("cuda"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5,7")
    assert at_a_time(run) == 3
    assert [environment(run, slot, os.environ)["CUDA_VISIBLE_DEVICES"] for slot in range(3)] == ["2", "5", "7"]


def everything(path: Path) -> list[Planned]:
    study = read_study(path)
    return [*plan_runs(study), *tuning_runs(study)]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("contrasts", [{"arm": "rdd"}], r"contrasts.0.arm: no arm 'rdd' \(did you mean 'rd'"),
        ("contrasts", [{"arm": "rd", "against": "prenrom"}], "contrasts.0.against: no arm 'prenrom' .*'prenorm'"),
        ("contrasts", [{"arm": "prenorm"}], "contrasts.0: compares arm 'prenorm' with itself"),
        ("contrasts", [], "contrasts: "),
        ("contrasts", [{"arm": "rd", "equivalence": True}], "contrasts.0: equivalence needs a margin"),
        ("contrasts", [{"arm": "rd", "equivalence": False, "margin": 0.1}], "contrasts.0: has a margin, but equiv"),
        ("contrasts", [{"arm": "rd", "margin": -0.1}], "contrasts.0.margin: "),
        ("contrasts", [{"arm": "rd", "at": {"sise": "two"}}], "contrasts.0.at: no factor 'sise' .*did you mean 'size'"),
        ("contrasts", [{"arm": "rd", "at": {"size": "twoo"}}], "factor 'size' has no level 'twoo' .*mean 'two'"),
        ("contrasts", [{"arm": "rd", "held_out": "mroe"}], "no held-out set 'mroe' in base.data .*did you mean 'more'"),
        ("contrasts", [{"arm": "rd"}, {"arm": "rd"}], "arm 'rd' is compared with 'prenorm' on 'validation' twice"),
        (
            "contrasts",
            [{"arm": "rd"}, {"arm": "prenorm", "against": "rd"}],
            "'prenorm' is compared with 'rd' on 'validation' in both directions; leave one of them out",
        ),
        ("contrasts", [{"arm": "rd", "held_out": "spare"}], "a contrast of arm 'rd' is judged on the text of 'spare'"),
        ("contrasts", [{"arm": "rd", "held_out": "same"}], "a contrast of arm 'rd' is judged on the text of 'spare'"),
        ("level", 1.5, "level: "),
        ("power", {"sd": 0}, "power.sd: "),
        ("seeds", [3], "seeds: at least 2 seeds are needed, not 1"),
        ("seeds", [3, 7], "tuning.seeds: 7 is one of the study's seeds"),
        ("tuning", TUNING | {"seeds": []}, "tuning.seeds: "),
        ("tuning", TUNING | {"seeds": [7, 7]}, "tuning.seeds: 7 is given twice"),
        ("tuning", TUNING | {"held_out": "spar"}, "tuning.held_out: no held-out set 'spar' .*did you mean 'spare'"),
        ("tuning", TUNING | {"held_out": "validation"}, "judged on the text of 'validation'"),
        ("tuning", TUNING | {"skip": ["rdd"]}, "tuning: no arm 'rdd'"),
        ("tuning", TUNING | {"skip": ["rd"], "arms": {"rd": {"clip": [1.0]}}}, "tuning: arms.rd: is skipped too"),
        ("tuning", TUNING | {"arms": {"rd": {"optimizer.queries": [0.1]}}}, "optimizer.queries: stands in grid too"),
        ("tuning", TUNING | {"grid": {"clip": []}}, "tuning.grid.clip: "),
        ("tuning", TUNING | {"grid": {"clip": [1.0, 1.0]}}, "grid.clip: 1.0 is given twice"),
        ("tuning", TUNING | {"grid": {"length": [64]}}, "tuning: length cannot be tuned"),
        ("tuning", TUNING | {"grid": {"tokens": [64]}}, "tuning: tokens cannot be tuned"),
        ("tuning", TUNING | {"grid": {"seed": [64]}}, "tuning: seed cannot be tuned"),
        ("tuning", TUNING | {"grid": {"impl": ["reference", "compiled"]}}, "tuning: impl cannot be tuned"),
        ("tuning", TUNING | {"grid": {"model.layers": [2]}}, "tuning: model.layers is set by cross.size.two too"),
        ("tuning", TUNING | {"grid": {"model.residual.blocks": [2]}}, "model.residual.blocks is set by arm 'rd' too"),
        ("tuning", TUNING | {"grid": {"clip": ["x"]}}, "arm 'prenorm' at size=two at rate=low with clip=x: clip: "),
        ("tuning", TUNING | {"tokens": 512}, "schedule.warmup 4 leaves none of the 1 steps"),
        ("replicates", [{"arm": "rdd", "seed": 3}], "replicates.0.arm: no arm 'rdd'"),
        ("replicates", [{"arm": "rd", "seed": 4}], "replicates.0: no run of arm 'rd' has seed 4; seeds: "),
        (
            "replicates",
            [{"arm": "rd", "seed": 3, "at": {"size": "x"}}],
            "replicates.0.at: factor 'size' has no level 'x'",
        ),
        ("cross", {"size": {"two": None}}, "cross.size: a factor needs at least 2 levels, not 1"),
        ("cross", {"size": {2: None, 4: None}}, "2 cannot name a directory, as arms, factors and levels do"),
        (
            "cross",
            {"size": SIZES, "text": {"a": None, "b": {"data.tokenizer": {"bpe": 300}}}},
            "cross.text.b: data.tok",
        ),
        ("cross", {"size": {"two": None, "b": {"length": 32}}}, "cross.size.b: length must be the same everywhere"),
        ("cross", {"size": {"two": None, "b": {"evaluation": {"tokens": 64}}}}, "cross.size.b: evaluation.tokens must"),
        ("cross", {"size": {"two": None, "b": {"seed": 9}}}, "cross.size.b: seed must be the same everywhere"),
        ("cross", {"size": {"two": None, "b": {"model.residual": "rd"}}}, "model.residual is set by arm 'rd' too"),
        (
            "cross",
            {"size": SIZES, "deep": {"a": None, "b": {"model.layers": 9}}},
            "cross.deep.b: model.layers is set by cr",
        ),
        (
            "cross",
            {"size": {"two": None, "b": {"model.layers": 2}}},
            "levels 'two' and 'b' give arm 'prenorm' the same",
        ),
        (
            "cross",
            {"size": {"two": None, "b": {"model.layer": 3}}},
            "arm 'prenorm' at size=b: model.layer: unknown key",
        ),
    ],
)
def test_each_mistake_in_the_plan_is_one_line(key: str, value: object, message: str, tmp_path: Path) -> None:
    raw = full()
    if key == "cross":
        raw |= {"contrasts": None, "replicates": []}
    with pytest.raises(ConfigError, match=message) as caught:
        everything(write_study(tmp_path, raw | {key: value}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_study_that_ships_can_be_planned_and_says_what_it_asks_and_takes(path: Path) -> None:
    study = read_study(path)
    runs, points = plan_runs(study), tuning_runs(study)
    # Where implementations are compared, both arms are given the same settings.
    assert bool(points) != bool(study.parity)
    for run in {run.cell: run for run in runs}.values():
        assert built_impl(run, 1024) == resolve(run.config.impl)
    opening = path.read_text(encoding="utf-8").partition("question:")[0]
    for word in (
        "Question",
        "Command",
        f"depthroute study run studies/{path.name}",
        "Time",
        f"{len(runs)} runs",
        "Paper",
    ):
        assert word in opening
    assert all(contrast.margin for contrast in contrasts(study) if contrast.primary)


def test_the_studies_hold_every_control_rank_and_combination_that_they_promise() -> None:
    _, ranks, controls, roles, _ = map(read_study, STUDIES)
    assert {"attnres-block", "rd", "rd-tied", "rd-average", "rd-frozen-v", "placebo", "temperature", "rd-qkv"} <= {
        *controls.arms
    }
    assert "prenorm" in controls.arms
    assert list(controls.cross) == ["size"]
    assert len(controls.seeds) >= 10
    tested = {one.arm if one.arm != "rd" else one.against for one in contrasts(controls) if one.primary}
    assert tested == {"attnres-block", "rd-tied", "rd-average", "rd-frozen-v", "placebo", "temperature"}
    assert list(ranks.cross["sources"]) == ["full", "N4", "N8", "N16"]
    keys = [arm["model.residual"]["keys"] for arm in ranks.arms.values()]
    for kind in ("sliced", "projected"):
        assert [key[kind] for key in keys if kind in key] == [4, 16, 64]
    assert len([key for key in keys if "subset" in key]) >= 2
    assert len(roles.arms) == 3 * 3
    residuals = [run.config.model.residual for run in plan_runs(roles) if run.seed == roles.seeds[0]]
    found = {tuple(str(getattr(residual, axis)) for axis in ("routes", "keys")) for residual in residuals}
    assert len(found) == 9


def test_five_studies_ship() -> None:
    assert [path.stem for path in STUDIES] == [
        "implementation-x-architecture",
        "low-rank-sweep",
        "rd-against-controls",
        "roles-x-keys",
        "routes-on-three-texts",
    ]
