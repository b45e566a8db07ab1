"""A study evaluated on another text: every run alone, then its arms in pairs of equal seeds."""

import json
import shutil
from pathlib import Path

import pytest

from depthroute.errors import RunError
from depthroute.evaluation import study
from depthroute.evaluation.paired import Metric, compare, pairs, render
from depthroute.evaluation.text import Texts, domains
from depthroute.evaluation.trained import is_study, of_study, opened
from depthroute.study.statistics import paired
from studies import depthroute, trained_folder

NO_LEVELS: dict[str, str] = {}
RESULTS = {
    "seeds": [1, 2, 3],
    "level": 0.1,
    "contrasts": [
        {"arm": "rd", "against": "prenorm", "levels": NO_LEVELS, "held_out": "validation"},
        {"arm": "rd", "against": "prenorm", "levels": NO_LEVELS, "held_out": "docs"},
        {"arm": "rd", "against": "prenorm", "levels": {"size": "S"}, "held_out": "docs"},
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    return trained_folder(tmp_path_factory, request)


def silent(*_: object) -> None:
    pass


def test_a_metric_is_compared_once_a_pair_of_cells_and_only_at_seeds_that_both_have():
    values = {"prenorm": {1: 4.0, 2: 4.2, 3: 4.1}, "rd": {3: 4.05, 1: 3.9}}
    compared = compare(Metric("wiki, nats a token", values), RESULTS)
    assert pairs(RESULTS) == [("rd", "prenorm"), ("rd|size=S", "prenorm|size=S")]
    whole, none = compared["contrasts"]
    assert whole["by_seed"] == {1: pytest.approx(-0.1), 3: pytest.approx(-0.05)}
    expected = paired(list(whole["by_seed"].values()), 0.9)
    assert (whole["summary"]["low"], whole["summary"]["t_p"]) == (expected.low, expected.t_p)
    assert (none["by_seed"], none["summary"]) == ({}, None)


def test_the_tables_show_values_differences_and_that_nothing_is_judged():
    values = {"prenorm": {1: 4.0, 2: 4.2, 3: 4.1}, "rd": {1: 3.9, 2: 4.1}}
    lines = render(compare(Metric("wiki, nats a token", values), RESULTS), RESULTS)
    assert lines[0] == "wiki, nats a token"
    assert lines[2].split() == ["prenorm", "4.0000", "4.2000", "4.1000", "4.1000"]
    assert lines[3].split() == ["rd", "3.9000", "4.1000", "-", "-"]
    assert "t interval at 90 %" in lines[5]
    assert "described, not judged" in lines[5]
    assert lines[7].split()[:6] == ["rd", "prenorm", "-0.1000", "-0.1000", "-", "-0.1000"]
    assert lines[8].split() == ["rd|size=S", "prenorm|size=S", "-", "-", "-", "-", "-", "-", "0"]


def test_arms_with_the_same_numbers_are_called_identical_and_not_tested():
    values = {"prenorm": {1: 4.0, 2: 4.2}, "rd": {1: 4.0, 2: 4.2}}
    compared = compare(Metric("acc", values), {**RESULTS, "contrasts": RESULTS["contrasts"][:1], "seeds": [1, 2]})
    assert compared["contrasts"][0]["summary"] is None
    assert render(compared, RESULTS)[-1].split()[-3:] == ["identical", "-", "2"]


def test_every_run_of_a_study_is_evaluated_as_alone_and_its_arms_in_pairs(folder):
    text = folder / "other.txt"
    text.write_text("depth route layer source query\nblock value mixed token site depth\n" * 40)
    evaluator = Texts(domains([f"other={text}"], "text"))
    found = study.evaluate(folder / "whole", evaluator, silent, silent)
    assert {(run["arm"], run["seed"]) for run in found["runs"]} == {(a, s) for a in ("prenorm", "rd") for s in (1, 3)}
    with opened(folder / "whole/runs/rd/3") as run:
        (alone,) = evaluator.evaluate(run, silent)["domains"]
    (inside,) = next(run for run in found["runs"] if (run["arm"], run["seed"]) == ("rd", 3))["domains"]
    assert inside == alone
    by_metric = {compared["metric"]: compared for compared in found["metrics"]}
    assert list(by_metric) == ["other, nats a token", "other, bits a byte", "other, perplexity"]
    nll = by_metric["other, nats a token"]
    (contrast,) = nll["contrasts"]
    differences = {seed: nll["values"]["rd"][seed] - nll["values"]["prenorm"][seed] for seed in (3, 1)}
    assert nll["values"]["rd"][3] == alone["nll"]["value"]
    assert contrast["by_seed"] == differences
    expected = paired(list(differences.values()))
    assert contrast["summary"]["low"] == pytest.approx(expected.low, rel=1e-12)
    assert found["left_out"] == []


def test_a_study_is_evaluated_from_the_command_line_and_says_what_it_left_out(folder, tmp_path):
    shutil.copytree(folder / "whole", tmp_path / "part")
    (tmp_path / "part/runs/rd/1/model/model.safetensors").unlink()
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"text": f"depth route {n}"}) + "\n" for n in range(3)))
    done = depthroute("eval", "part", "--text", "x.jsonl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "x.jsonl, nats a token, minus the other arm's at the same seed" in done.stdout
    assert "left out:\n  rd seed 1: interrupted" in done.stdout
    assert "1 of 3: runs/" in done.stderr


def test_a_directory_is_told_to_be_a_study_a_run_or_neither(folder, tmp_path):
    assert is_study(folder / "whole")
    assert not is_study(folder / "whole/runs/rd/3")
    with pytest.raises(RunError, match="is neither a run nor a study"):
        is_study(tmp_path)
    assert of_study(folder / "whole").left_out == []
