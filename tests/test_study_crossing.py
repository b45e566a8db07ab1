"""A factor crossed with the arms: effects of its levels, interactions, and their equivalence, from fabricated runs."""

import csv
from pathlib import Path
from typing import Any

import pytest
from fabricated import plan_of, prereg_of, write_study

from depthroute.errors import ConfigError
from depthroute.report import page
from depthroute.study.amend import design_differences
from depthroute.study.cells import Planned
from depthroute.study.plan import Study, plan_runs
from depthroute.study.preview import render as preview
from depthroute.study.table import amendment_lines, render
from studies import raw_study

ARMS, SEEDS = ["block", "rd"], [1, 2, 3, 4, 5, 6]
CROSS = {"implementation": ["one", "two", "odd"], "size": ["S", "M"]}
CROSSING = {"factor": "implementation", "held_out": "validation", "margin": 0.005}
RD, TWO, ODD = -0.02, 0.00001, 0.03


def final(cell: Planned, held_out: str) -> float:
    """rd is better by .02; `two` changes next to nothing; `odd` costs rd, and rd alone, .03."""
    level = cell.levels["implementation"]
    # As often up as down over the seeds, and of another size in every cell.
    places = ARMS.index(cell.arm), CROSS["implementation"].index(level), "SM".index(cell.levels.get("size", "S"))
    noise = 2e-5 * 2 ** (places[0] + 2 * places[1] + places[2]) * (-1) ** cell.seed
    is_rd = cell.arm == "rd"
    return 2.9 + 0.01 * cell.seed + RD * is_rd + TWO * (level == "two") + ODD * (level == "odd" and is_rd) + noise


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    directory = tmp_path_factory.mktemp("crossed")
    plan = plan_of(ARMS, SEEDS, CROSS)
    prereg = prereg_of(plan, [{"arm": "rd", "against": "block", "at": {}}], CROSS, crossings=[CROSSING])
    return directory, write_study(directory, plan, prereg, final), prereg


def found(results: dict[str, Any], **asked: Any) -> dict[str, Any]:
    (one,) = (c for c in results["crossings"] if all(c[key] == value for key, value in asked.items()))
    return one


def test_every_level_is_compared_with_the_first_in_every_arm_and_between_arms_at_every_other_level(study) -> None:
    _, results, _ = study
    named = [(c["kind"], c["arm"], c["against"], c["levels"]["size"]) for c in results["crossings"]]
    for size in ("S", "M"):
        for level in ("two", "odd"):
            assert ("effect", f"block at {level}", "block at one", size) in named
            assert ("effect", f"rd at {level}", "rd at one", size) in named
            assert ("interaction", f"rd minus block at {level}", "rd minus block at one", size) in named
    assert len(named) == 12


def test_an_interaction_is_the_difference_of_the_arms_differences_seed_by_seed(study) -> None:
    _, results, _ = study
    contrasts = {(c["levels"]["implementation"], c["levels"]["size"]): c["by_seed"] for c in results["contrasts"]}
    for level in ("two", "odd"):
        interaction = found(results, kind="interaction", arm=f"rd minus block at {level}", levels={"size": "M"})
        for seed in map(str, SEEDS):
            expected = contrasts[level, "M"][seed] - contrasts["one", "M"][seed]
            assert interaction["by_seed"][seed] == pytest.approx(expected, abs=1e-12)


def test_effects_and_interactions_are_what_was_put_in(study) -> None:
    _, results, _ = study
    at = {"levels": {"size": "S"}}
    for arm, expected in (
        ("rd at odd", ODD),
        ("block at odd", 0.0),
        ("rd minus block at odd", ODD),
        ("rd at two", TWO),
    ):
        assert found(results, arm=arm, **at)["summary"]["mean"] == pytest.approx(expected, abs=1e-12)
    assert found(results, arm="rd at two", **at)["verdict"] == "equivalent"
    assert found(results, arm="rd minus block at two", **at)["verdict"] == "equivalent"
    odd = found(results, arm="rd minus block at odd", **at)
    assert odd["verdict"] == "described"
    assert not odd["equivalence"]["equivalent"]
    claim, _, evidence = odd["words"].partition(": ")
    assert claim == (
        "rd minus block at odd against rd minus block at one on validation (size S), described and not judged"
    )
    assert evidence.startswith("mean +0.0")


def test_a_missing_run_makes_what_needs_it_incomplete_and_nothing_else(tmp_path: Path) -> None:
    plan = plan_of(ARMS, SEEDS, {"implementation": ["one", "two"]})
    prereg = prereg_of(
        plan, [{"arm": "rd", "against": "block"}], {"implementation": ["one", "two"]}, crossings=[CROSSING]
    )
    results = write_study(tmp_path / "study", plan, prereg, final, left_out=[("rd", 4)])
    verdicts = {c["arm"]: (c["verdict"], len(c["by_seed"])) for c in results["crossings"]}
    assert verdicts["rd at two"] == verdicts["rd minus block at two"] == ("incomplete", 5)
    assert verdicts["block at two"][1] == 6


def test_terminal_plan_page_and_tables_show_every_crossing(study) -> None:
    directory, results, prereg = study
    text = render(results)
    assert "no difference between rd at two and rd at one on validation (size S) at the planned margin of 0.005" in text
    assert "two, odd against one in every arm, and between arms, on validation, descriptive, margin 0.005" in " ".join(
        preview(prereg).split()
    )
    html = page.write(*page.read(directory), directory).read_text()
    rows = list(csv.DictReader((directory / "tables/crossings.csv").read_text().splitlines()))
    assert len(rows) == 12 * len(SEEDS)
    for crossing in results["crossings"]:
        assert crossing["words"].partition(": ")[0] in html
        assert {row["seed"] for row in rows if row["arm"] == crossing["arm"]} == set(map(str, SEEDS))
    assert (directory / "tables/crossings.tex").exists()


def crossed(**changes: Any) -> dict[str, Any]:
    raw = raw_study(Path("text.txt"))
    levels = {"low": {"optimizer.queries": 0.001}, "high": {"optimizer.queries": 0.01}}
    return {**raw, "cross": {"rate": levels}, "crossings": [{"factor": "rate", "margin": 0.01}], **changes}


@pytest.mark.parametrize(
    ("crossings", "message"),
    [
        ([{"factor": "raet"}], r"crossings.0.factor: no factor 'raet' in cross \(did you mean 'rate'"),
        ([{"factor": "rate", "held_out": "validatoin"}], "crossings: no held-out set 'validatoin'"),
        ([{"factor": "rate"}, {"factor": "rate"}], "crossings: factor 'rate' is crossed on 'validation' twice"),
        ([{"factor": "rate", "margin": 0}], "crossings.0.margin"),
    ],
)
def test_a_crossing_that_cannot_be_is_one_line(crossings: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        plan_runs(Study.parse(crossed(crossings=crossings)))
    assert "\n" not in str(caught.value)


def test_a_margin_or_tolerance_that_changes_after_planning_is_a_difference_from_the_plan() -> None:
    before = Study.parse(crossed(parity={"tolerance": {"fp32": 1e-5}}))
    digests = dict.fromkeys((run.cell for run in plan_runs(before)), "")
    plan = {"study": before.model_dump(mode="json"), "config_digests": digests}
    after = Study.parse(crossed(parity={"tolerance": {"fp32": 1e-3}}, crossings=[{"factor": "rate", "margin": 0.02}]))
    lines = design_differences(plan, after)
    assert lines == [
        "removes crossing of rate on validation, margin 0.01",
        "adds crossing of rate on validation, margin 0.02",
        "parity.tolerance.fp32 was 1e-05, is now 0.001",
    ]
    amendment = {"runs_finished": 4, "why": "It did not hold.", "changes": lines}
    said = amendment_lines({"provenance": {"amendments": [amendment]}})
    assert said[-1].startswith("warning: contrasts, crossings, margins, seeds or the level were changed")
