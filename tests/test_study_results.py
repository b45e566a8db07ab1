"""From run directories with chosen NLLs to results.json: what is read, checked, flagged and left out."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fabricated import MILESTONES, plan_of, prereg_of, write_run, write_study

from depthroute import runs
from depthroute.errors import RunError
from depthroute.study import tuning
from depthroute.study.cells import Planned
from depthroute.study.results import collect
from depthroute.study.table import render

SEEDS = [5, 3, 8, 1, 2]
SMALL = dict(zip(SEEDS, (-0.0290, -0.0270, -0.0294, -0.0300, -0.0352), strict=True))
MEDIUM = dict(zip(SEEDS, (-0.0181, -0.0120, -0.0211, -0.0292, -0.0430), strict=True))
CROSS = {"size": ("S", "M")}
REPEATED = 0.0004


def final(cell: Planned, held_out: str) -> float:
    """The published differences between the arms at both sizes, and a little more when a run is repeated."""
    differences = SMALL if cell.levels["size"] == "S" else MEDIUM
    base = {"validation": 3.0, "austen": 3.5}[held_out] + cell.seed / 64
    return base + (differences[cell.seed] if cell.arm == "rd" else 0.0) + REPEATED * cell.replicate


@pytest.fixture(scope="module")
def plan() -> list[Planned]:
    return plan_of(["block", "rd"], SEEDS, CROSS, replicates=[("block", 3)])


@pytest.fixture(scope="module")
def prereg(plan: list[Planned]) -> dict[str, Any]:
    primary = {"arm": "rd", "against": "block", "primary": True, "margin": 0.005}
    secondary = {"arm": "rd", "against": "block", "held_out": "austen", "at": {"size": "M"}}
    return prereg_of(plan, [primary, secondary], CROSS, held_out=["validation", "austen"])


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, plan: list[Planned], prereg: dict[str, Any]) -> Path:
    directory = tmp_path_factory.mktemp("results") / "study"
    write_study(directory, plan, prereg, final, ("validation", "austen"))
    return directory


def results_of(study: Path) -> dict[str, Any]:
    return json.loads((study / "results.json").read_text())


def changed(study: Path, folder: Path, run: str, file: str, change: Mapping[str, Any]) -> Path:
    """A copy of the study in which one run's file says something else."""
    shutil.copytree(study, folder / "changed")
    path = folder / "changed/runs" / run / file
    if file == runs.METRICS:
        found = runs.metrics(path.parent)
        path.write_bytes(b"".join(runs.encode({**event, **change} if "nll" in event else event) for event in found))
    else:
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    return folder / "changed"


def test_the_published_differences_give_the_published_answers(study: Path) -> None:
    contrasts = results_of(study)["contrasts"]
    by_size = {c["levels"]["size"]: c for c in contrasts if c["held_out"] == "validation"}
    small, medium = by_size["S"], by_size["M"]
    assert small["by_seed"] == pytest.approx({str(seed): value for seed, value in SMALL.items()})
    for contrast, mean, sd, low, high in (
        (small, -0.0301, 0.0031, -0.0339, -0.0263),
        (medium, -0.0247, 0.0120, -0.0396, -0.0098),
    ):
        summary = contrast["summary"]
        assert (summary["mean"], summary["sd"]) == pytest.approx((mean, sd), abs=6e-5)
        assert (summary["low"], summary["high"]) == pytest.approx((low, high), abs=1e-4)
        assert summary["sign_flip_p"] == 0.0625
    assert small["summary"]["bootstrap"]["percentile"] == pytest.approx((-0.0329, -0.0281), abs=2e-4)
    assert medium["summary"]["bootstrap"]["percentile"] == pytest.approx((-0.0347, -0.0163), abs=4e-4)
    assert small["verdict"] == medium["verdict"] == "lower"
    ps = sorted((small["summary"]["t_p"], medium["summary"]["t_p"]))
    holm = sorted((small["summary"]["holm_p"], medium["summary"]["holm_p"]))
    assert holm == pytest.approx([2 * ps[0], max(2 * ps[0], ps[1])])


def test_a_contrast_stands_at_the_levels_that_it_names_or_at_all(study: Path) -> None:
    planned = [(c["held_out"], c["levels"]["size"], c["primary"]) for c in results_of(study)["contrasts"]]
    assert planned == [("validation", "S", True), ("validation", "M", True), ("austen", "M", False)]
    assert "holm_p" not in results_of(study)["contrasts"][2]["summary"]


def test_every_held_out_set_has_its_paired_table_and_what_was_not_planned_there_is_not_tested(study: Path) -> None:
    results = results_of(study)
    (pair,) = results["unplanned"]
    assert (pair["held_out"], pair["levels"]) == ("austen", {"size": "S"})
    assert pair["by_seed"] == pytest.approx({str(seed): value for seed, value in SMALL.items()})
    assert set(pair) == {"arm", "against", "levels", "held_out", "by_seed"}
    lines = render(results).splitlines()
    title = next(n for n, line in enumerate(lines) if line.startswith("NLL on austen (size S) minus the other arm's"))
    row = lines[title + 2].split()
    assert row[:3] + row[-6:] == ["rd", "block", "-0.0290", "-", "-", "-", "5", "not", "planned"]


def test_metrics_that_are_not_those_of_the_whole_run_are_named(
    study: Path, plan: list[Planned], prereg: dict[str, Any], tmp_path: Path
) -> None:
    shutil.copytree(study, tmp_path / "study")
    path = tmp_path / "study/runs/rd/size=S/8" / runs.METRICS
    events = runs.metrics(path.parent)
    without_a_step = [event for event in events if (event["event"], event["step"]) != ("step", 7)]
    for found in (without_a_step, [*events[:-1], {**events[-1], "step": 65}]):
        path.write_bytes(b"".join(map(runs.encode, found)))
        with pytest.raises(RunError, match=r"metrics\.jsonl: is not that of 64 steps, each once and in order; delete"):
            collect(prereg, plan, tmp_path / "study")
    kept = [event for event in events if (event["step"], event.get("held_out")) != (64, "austen")]
    path.write_bytes(b"".join(map(runs.encode, kept)))
    with pytest.raises(RunError, match="held-out tokens, so they cannot be compared"):
        collect(prereg, plan, tmp_path / "study")


def test_a_run_is_read_with_its_curve_its_cost_and_its_place(study: Path) -> None:
    entries = results_of(study)["runs"]
    run = next(run for run in entries if (run["arm"], run["seed"], run["levels"]["size"]) == ("rd", 8, "M"))
    assert run["directory"] == "runs/rd/size=M/8"
    assert [point["tokens"] for point in run["curve"]] == list(MILESTONES)
    assert run["curve"][-1]["held_out"] == pytest.approx({"validation": 3.125 - 0.0211, "austen": 3.625 - 0.0211})
    assert run["curve"][0]["seconds"] == 0.0
    assert run["curve"][-1]["seconds"] == run["seconds"] == pytest.approx(1.2 * 64)
    assert run["held_out"]["validation"]["nll"] == run["curve"][-1]["held_out"]["validation"]
    dearer, cheaper = (next(r["flops_per_token"] for r in entries if r["arm"] == arm) for arm in ("rd", "block"))
    assert dearer > cheaper > 6 * 3 * 32 * 32


def test_a_repeated_run_gives_the_noise_floor_and_is_no_pair(study: Path) -> None:
    results = results_of(study)
    assert [entry["levels"]["size"] for entry in results["noise"]] == ["S", "M"]
    for entry in results["noise"]:
        assert (entry["arm"], entry["seed"], entry["replicate"]) == ("block", 3, 1)
        assert entry["difference"] == pytest.approx({"validation": REPEATED, "austen": REPEATED})
    assert all(contrast["summary"]["pairs"] == 5 for contrast in results["contrasts"])


def test_the_table_says_the_verdict_first_and_every_number(study: Path) -> None:
    text = render(results_of(study))
    lines = text.splitlines()
    assert lines[0] == "Does a role-decoupled read beat the shared one?"
    assert lines[2].startswith("primary: rd has a lower NLL than block on validation (size S): mean -0.0301, 95 % int")
    assert lines[4].startswith("rd against block on austen (size M), described and not judged: mean ")
    for part in ("-0.0294", "[-0.0339, -0.0263]", "0.0625", "again (1)", "+0.0004", "2,048 tokens"):
        assert part in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data_digest": "f0" * 32}, "data_digest is f0f0f0f0f0f0..., planned dadadadadada..."),
        ({"tokenizer_digest": "f0" * 32}, "tokenizer_digest is f0f0"),
        ({"impl": "other"}, "impl is other, planned reference"),
        ({"versions": {"python": "3.11.2", "torch": "2.12.0"}}, "versions.torch is 2.12.0, planned 2.13.0"),
    ],
)
def test_a_run_that_disagrees_with_its_plan_is_flagged_and_left_out(
    study: Path, plan: list[Planned], prereg: dict[str, Any], tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    place = changed(study, tmp_path, "rd/size=S/8", runs.MANIFEST, change)
    results = collect(prereg, plan, place)
    assert results["flagged"][0]["directory"] == "runs/rd/size=S/8"
    assert any(flag.startswith(words) for flag in results["flagged"][0]["flags"])
    first = results["contrasts"][0]
    assert list(first["by_seed"]) == ["5", "3", "1", "2"]
    assert (first["verdict"], first["summary"]["pairs"]) == ("incomplete", 4)
    assert "4 of 5 planned pairs; so far mean" in first["words"]
    assert "left out of every number above" in render(results)


def test_flagged_runs_count_where_they_are_asked_for(
    study: Path, plan: list[Planned], prereg: dict[str, Any], tmp_path: Path
) -> None:
    place = changed(study, tmp_path, "rd/size=S/8", runs.MANIFEST, {"impl": "other"})
    results = collect(prereg, plan, place, include_flagged=True)
    assert results["contrasts"][0]["summary"]["pairs"] == 5
    assert "flagged, counted all the same" in render(results)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (runs.METRICS, {"tokens_evaluated": 64}, r"rd/size=S/8 and runs/block/size=S/5 have different held-out tokens"),
        (runs.MANIFEST, {"config_digest": "f00"}, "rd/size=S/8: was trained with another configuration"),
    ],
)
def test_runs_of_another_study_or_on_other_tokens_are_refused(
    study: Path,
    plan: list[Planned],
    prereg: dict[str, Any],
    tmp_path: Path,
    file: str,
    change: dict[str, Any],
    message: str,
) -> None:
    place = changed(study, tmp_path, "rd/size=S/8", file, change)
    before = (place / "results.json").read_bytes()
    with pytest.raises(RunError, match=message):
        collect(prereg, plan, place)
    assert (place / "results.json").read_bytes() == before


def test_runs_on_other_data_cannot_be_counted_even_where_asked_for(
    study: Path, plan: list[Planned], prereg: dict[str, Any], tmp_path: Path
) -> None:
    place = changed(study, tmp_path, "rd/size=S/8", runs.MANIFEST, {"data_digest": "f0"})
    with pytest.raises(RunError, match="different data_digest"):
        collect(prereg, plan, place, include_flagged=True)


def test_a_manifest_that_lacks_something_is_named(
    study: Path, plan: list[Planned], prereg: dict[str, Any], tmp_path: Path
) -> None:
    shutil.copytree(study, tmp_path / "study")
    (tmp_path / "study/runs/rd/size=S/8" / runs.MANIFEST).write_text("{}")
    with pytest.raises(RunError, match=r"manifest\.json: has no data_digest"):
        collect(prereg, plan, tmp_path / "study")


@pytest.mark.parametrize("change", [{"versions": None}, {"threads": "1"}, {"data_digest": 7}, {"impl": None}])
def test_a_manifest_of_another_shape_is_named_with_its_key(
    study: Path, plan: list[Planned], prereg: dict[str, Any], tmp_path: Path, change: dict[str, Any]
) -> None:
    place = changed(study, tmp_path, "rd/size=S/8", runs.MANIFEST, change)
    (key,) = change
    with pytest.raises(RunError, match=rf"manifest\.json: damaged \({key} is .*\); delete .*runs/rd/size=S/8 and run"):
        collect(prereg, plan, place)


def test_missing_arms_and_lone_pairs_are_incomplete_and_listed(tmp_path: Path) -> None:
    plan = plan_of(["block", "rd", "slr"], [1, 2])
    prereg = prereg_of(plan, [{"arm": "rd", "against": "block"}, {"arm": "slr", "against": "block"}])
    for cell in plan:
        if (cell.arm, cell.seed) in (("block", 1), ("rd", 1), ("block", 2)):
            write_run(cell, tmp_path, lambda _: 3.0)
    results = collect(prereg, plan, tmp_path)
    rd, slr = results["contrasts"]
    assert (rd["verdict"], rd["summary"], list(rd["by_seed"])) == ("incomplete", None, ["1"])
    assert rd["words"] == "rd against block on validation is incomplete: 1 of 2 planned pairs"
    assert (slr["verdict"], slr["by_seed"]) == ("incomplete", {})
    assert {(gap["arm"], len(gap["points"][-1]["by_seed"])) for gap in results["gaps"]} == {("rd", 1)}
    assert [(run["arm"], run["seed"], run["step"]) for run in results["missing"]] == [
        ("slr", 1, 0),
        ("rd", 2, 0),
        ("slr", 2, 0),
    ]
    text = render(results)
    assert "slr seed 2: no step yet" in text
    assert json.loads(json.dumps(results, allow_nan=False)) == results


def test_a_study_without_a_finished_run_has_results_all_the_same(tmp_path: Path) -> None:
    plan = plan_of(["block", "rd"], [1, 2])
    results = collect(prereg_of(plan, [{"arm": "rd", "against": "block"}]), plan, tmp_path)
    assert [contrast["verdict"] for contrast in results["contrasts"]] == ["incomplete"]
    assert (results["runs"], results["gaps"], results["noise"], len(results["missing"])) == ([], [], [], 4)
    assert "is incomplete: 0 of 2 planned pairs" in render(results)
    assert render(results).count("warning: no arm was tuned: a difference may be one of settings") == 1


def test_a_contrast_on_a_set_that_no_run_was_judged_on_is_refused(tmp_path: Path) -> None:
    plan = plan_of(["block", "rd"], [1])
    prereg = prereg_of(plan, [{"arm": "rd", "against": "block", "held_out": "austen"}])
    for cell in plan:
        write_run(cell, tmp_path, lambda _: 3.0)
    with pytest.raises(RunError, match="rd/1: was not evaluated on 'austen'"):
        collect(prereg, plan, tmp_path)


def test_tuning_warns_of_edges_and_of_arms_that_were_not_tuned(tmp_path: Path) -> None:
    plan = plan_of(["block", "rd", "slr"], [1, 2])
    prereg = prereg_of(plan, [{"arm": "rd", "against": "block"}], tuning={"seeds": [101], "held_out": "validation"})
    grid = {"optimizer.queries": [0.001, 0.003], "model.embedding_std": [0.5, 1.0]}
    edges = {"block": ["optimizer.queries"], "rd": ["optimizer.queries", "model.embedding_std"]}
    tuned = {
        arm: {"grid": grid, "points": [], "selected": {}, "on_edge": keys, "tuned": True, "digest": "f00"}
        for arm, keys in edges.items()
    }
    tuning.write(tuned, tmp_path)
    text = render(collect(prereg, plan, tmp_path))
    assert "warning: not tuned: slr" in text
    assert "NLL on validation (tuned on), nats a token" in text
    found = collect(prereg, plan, tmp_path)["tuning"]
    assert found["warnings"] == [
        "the best optimizer.queries lies on the edge of its tuning grid for block, rd",
        "the best model.embedding_std lies on the edge of its tuning grid for rd",
        "not tuned: slr",
    ]
    assert found["cells"]["rd"]["grid"] == grid
    (tmp_path / "tuning.json").write_text("{")
    with pytest.raises(RunError, match=r"tuning\.json: damaged"):
        collect(prereg, plan, tmp_path)
