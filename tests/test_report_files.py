"""The files that a report is made from, which may be wrong, and those that it leaves, which a person may edit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fabricated import rewrite
from reports import prereg
from reports import write as write_reported

from depthroute.cli.report import report as command
from depthroute.errors import RunError
from depthroute.report import written
from depthroute.report.page import read
from depthroute.study.seal import sealed


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_reported(tmp_path_factory.mktemp("files") / "study")
    (directory / "report.html").write_text("of an earlier report")
    return directory


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("results.json", None, r"results\.json: missing; `depthroute study run` writes it"),
        ("prereg.json", None, r"prereg\.json: missing; `depthroute study plan` writes it"),
        ("results.json", "{", r"results\.json: damaged"),
        ("results.json", "[]", r"results\.json: damaged"),
        ("results.json", '{"question": "?"}', r"results\.json: damaged; `depthroute study run` writes it anew"),
        ("results.json", '{"format": 1, "digest": ""}', r"results\.json: has format 1, this version reads 3"),
        (
            "results.json",
            '{"format": 3, "digest": "", "runs": [{"held_out": []}]}',
            r"results\.json: was edited .* anew$",
        ),
        (
            "results.json",
            sealed({"format": 3}),
            r"results\.json: has no question; `depthroute study run` writes it anew",
        ),
        ("prereg.json", sealed({**prereg(), "contrasts": {}}), r"prereg\.json: damaged \(contrasts is {}\); restore"),
        ("prereg.json", sealed({**prereg(), "level": 0.7}), r"prereg\.json: damaged \(level is 0\.7\); restore the"),
        ("report.json", "{", r"report\.json: damaged; delete it, and files of earlier reports are left as they are"),
        ("report.json", {"files": ["a"]}, r"report\.json: damaged \(files is \['a'\]\); delete it"),
        (
            "report.json",
            {"files": {"tables/../a": ""}},
            r"report\.json: names a file outside of tables/ and figures/; d",
        ),
        ("prereg.json", json.dumps({**prereg(), "level": 0.2}), r"prereg\.json: was edited after .* restore it"),
        ("prereg.json", json.dumps(sealed({**prereg(), "level": 0.2})), r"results\.json: is older than the plan"),
    ],
)
def test_what_cannot_be_reported_is_one_line_and_nothing_is_overwritten(
    study: Path, tmp_path: Path, file: str, content: Any, message: str
) -> None:
    for name in ("results.json", "prereg.json", "report.html"):
        shutil.copy(study / name, tmp_path)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(content if isinstance(content, str) else json.dumps(content))
    before = (tmp_path / "report.html").read_bytes()
    with pytest.raises(RunError, match=message) as error:
        command(tmp_path)
    assert "\n" not in str(error.value)
    assert (tmp_path / "report.html").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda results: results.update(runs={}), r"damaged \(runs is {}\)"),
        (lambda results: results["runs"].append("rd"), r"damaged \(runs\.21 is 'rd'\)"),
        (lambda results: results["runs"][3].pop("seed"), r"has no runs\.3\.seed"),
        (lambda results: results["runs"][3].update(seed="1"), r"damaged \(runs\.3\.seed is '1'\)"),
        (lambda results: results["runs"][3].update(tokens=0), r"damaged \(runs\.3\.tokens is 0\)"),
        (lambda results: results["runs"][3].update(arm="rdd"), r"damaged \(no arm 'rdd' among its arms\)"),
        (lambda results: results["runs"][0]["curve"][1].update(held_out=[3.0]), r"runs\.0\.curve\.1\.held_out is \[3"),
        (
            lambda results: results["runs"][0]["held_out"].update(validation=3.0),
            r"runs\.0\.held_out\.validation is 3\.0",
        ),
        (lambda results: results["contrasts"][0].update(margin=-1.0), r"contrasts\.0\.margin is -1\.0"),
        (lambda results: results["contrasts"][0].pop("levels"), r"has no contrasts\.0\.levels"),
        (lambda results: results["tuning"].pop("warnings"), r"has no tuning\.warnings"),
        (lambda results: results["power"].update(words="much"), r"damaged \(power\.words is 'much'\)"),
        (lambda results: results["missing"][0].update(arm=None), r"damaged \(missing\.0\.arm is None\)"),
        (lambda results: results.update(baseline="none"), r"damaged \(no arm 'none' among its arms\)"),
        (lambda results: results["provenance"].pop("plan"), r"has no provenance\.plan"),
        (lambda results: results["provenance"]["amendments"].append(7), r"provenance\.amendments\.1 is 7"),
        (lambda results: results.update(question=["?"] * 99), r"damaged \(question is \['\?', .{0,40}\.\.\.\)"),
    ],
)
def test_sealed_results_of_another_shape_are_one_line_that_names_the_key(
    study: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    for name in ("results.json", "prereg.json"):
        shutil.copy(study / name, tmp_path)
    rewrite(tmp_path / "results.json", change)
    with pytest.raises(
        RunError, match=rf"results\.json: .*{message}.*; `depthroute study run` writes it anew$"
    ) as error:
        command(tmp_path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "report.html").exists()


def test_a_milestone_that_was_not_judged_on_a_set_is_no_point_of_its_gaps(study: Path, tmp_path: Path) -> None:
    for name in ("results.json", "prereg.json"):
        shutil.copy(study / name, tmp_path)

    def thin(results: dict[str, Any]) -> None:
        for run in results["runs"]:
            run["curve"][2]["held_out"].pop("validation")
            if run["arm"] == "prenorm":
                run["curve"] = []

    rewrite(tmp_path / "results.json", thin)
    results, _ = read(tmp_path)
    found = {(gap["arm"], gap["held_out"]): len(gap["points"]) for gap in results["gaps"] if gap["axis"] == "tokens"}
    assert found["rd", "validation"] == 3
    assert ("prenorm", "validation") not in found


def test_a_report_made_again_takes_away_what_it_no_longer_has_and_no_file_of_a_person(tmp_path: Path) -> None:
    first = {"tables/a.tex": b"1", "tables/b.tex": b"2", "figures/c.svg": b"3", "figures/d.svg": b"4"}
    written.replace(tmp_path, first)
    (tmp_path / "figures/c.svg").write_bytes(b"edited")
    (tmp_path / "figures/d.svg").unlink()
    (tmp_path / "tables/notes.tex").write_bytes(b"mine")
    written.replace(tmp_path, {"tables/a.tex": b"5"})
    found = {str(file.relative_to(tmp_path)): file.read_bytes() for file in tmp_path.glob("*/*")}
    assert found == {"tables/a.tex": b"5", "figures/c.svg": b"edited", "tables/notes.tex": b"mine"}
    written.replace(tmp_path, {"figures/c.svg": b"3"})
    assert (tmp_path / "tables/notes.tex").exists()
    assert not (tmp_path / "tables/a.tex").exists()


def test_a_full_disk_is_told_with_the_name_of_the_file(study: Path, tmp_path: Path) -> None:
    for name in ("results.json", "prereg.json"):
        shutil.copy(study / name, tmp_path)
    (tmp_path / ".report.html.partial").symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"report\.html: cannot be written \(No space left on device\)"):
        command(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_flagged_runs_on_other_data_are_not_counted_even_where_asked_for(study: Path, tmp_path: Path) -> None:
    for name in ("results.json", "prereg.json"):
        shutil.copy(study / name, tmp_path)
    moved = {"data_digest": "f0", "flags": ["data_digest is f0"]}
    rewrite(tmp_path / "results.json", lambda results: results["runs"][2].update(moved))
    assert read(tmp_path)[0]["contrasts"][0]["verdict"] == "incomplete"
    with pytest.raises(RunError, match="different data_digest, so they cannot be compared"):
        command(tmp_path, include_flagged=True)
    assert not (tmp_path / "report.html").exists()
