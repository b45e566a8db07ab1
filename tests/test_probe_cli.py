"""`inspect` and `intervene` on trained runs and on a study, as a person meets them."""

import hashlib
import json
import math
import shutil
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from depthroute import cli
from depthroute.probe.inspect import write
from studies import depthroute, trained_folder

trained = pytest.fixture(scope="module")(trained_folder)
RD, PRENORM = "whole/runs/rd/1", "whole/runs/prenorm/1"


def tree(directory: Path) -> dict[str, str]:
    """The sha256 of every file below a directory."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def user(trained, monkeypatch, capsys, as_a_user):
    """Someone at the command line in the study's folder: exit code, stdout and stderr of what they type."""
    monkeypatch.chdir(trained)

    def types(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["depthroute", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return (stop.value.code or 0, *capsys.readouterr())

    return types


@pytest.fixture(scope="module")
def inspected(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A run of rd beside one of prenorm: where it was written, what was said on stdout and stderr."""
    place = tmp_path_factory.mktemp("inspected")
    before = tree(trained / "whole")
    done = depthroute("inspect", RD, PRENORM, "--tokens", 2048, "--out", place, cwd=trained)
    assert done.returncode == 0, done.stderr
    assert tree(trained / "whole") == before
    return place, done.stdout, done.stderr


def test_inspect_writes_numbers_tables_and_a_page(inspected):
    place, said, progress = inspected
    content = json.loads((place / "inspect.json").read_text())
    rd, prenorm = (group["runs"][0] for group in content["groups"])
    assert (rd["summary"]["exposes_weights"], prenorm["summary"]["exposes_weights"]) == (True, False)
    assert f"{PRENORM}: residual 'additive' exposes no depth weights; the rest is measured" in progress
    assert rd["summary"]["tokens"] == prenorm["summary"]["tokens"] == 2048
    assert 0 < rd["summary"]["divergence"]["mean"] < math.log(2)
    assert rd["nll"] == pytest.approx(rd["final"]["validation"], abs=1e-5)
    for name, rows in rd["tables"].items():
        table = pyarrow.parquet.read_table(place / f"{name}.parquet").to_pylist()
        assert [row for row in table if row["run"] == RD] == [
            {"group": RD, "run": RD, "seed": 1, **row} for row in rows
        ]
    assert "5 sites, 1 with one source left out; JS over 1 reads with several routes" in said
    assert str(place / "inspect.html") in said


def test_inspect_of_a_study_takes_all_arms_with_their_seeds(user, tmp_path):
    code, out, said = user("inspect", "whole", "--tokens", 512, "--out", tmp_path, "--no-parquet", "--json")
    assert code == 0, said
    content = json.loads(out)
    found = {group["label"]: [run["seed"] for run in group["runs"]] for group in content["groups"]}
    assert found == {"prenorm": [3, 1], "rd": [3, 1]}
    assert {path.name for path in tmp_path.iterdir()} == {"inspect.html", "inspect.json"}
    page = (tmp_path / "inspect.html").read_text()
    for figure in ("effective-qk", "effective-v", "map-qk-rd", "gradients-attention", "gradients-mlp", "loss-by-flops"):
        assert f'<figure id="{figure}">' in page


def test_intervene_reports_paired_changes_and_writes_nothing(user, trained):
    before = tree(trained / "whole")
    arguments = ["intervene", RD, "--tokens", 512, "--what", "tie", "--what", "top"]
    code, out, said = user(*arguments, "--json")
    assert code == 0, said
    found = json.loads(out)
    assert {row["intervention"] for row in found["changes"]} == {"tie v to qk", "tie qk to v", "top 1", "top 2"}
    assert all(row["low"] <= row["change"] <= row["high"] for row in found["changes"])
    _, table, _ = user(*arguments, "--in-all")
    assert "change of NLL, nats a token, with a 95 % interval over documents" in table
    assert len(table.splitlines()) == 4 + 4
    assert tree(trained / "whole") == before


def test_text_of_ones_own_is_read_in_the_runs_tokens_and_its_documents(user, tmp_path):
    rows = [json.dumps({"text": f"depth route layer source {number} " * 8}) for number in range(9)]
    (tmp_path / "own.jsonl").write_text("\n".join(rows))
    code, out, said = user("intervene", RD, "--text", tmp_path / "own.jsonl", "--what", "tie", "--json")
    assert code == 0, said
    found = json.loads(out)
    assert found["text"] == "own.jsonl"
    assert found["tokens"] == (9 * (len("depth route layer source 0 ") * 8 + 1) - 1) // 64 * 64
    assert found["documents"] == 9


def refused(code: int, out: str, err: str) -> str:
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("command", ["inspect", "intervene"])
def test_bad_input_is_one_line_and_nothing_is_written(command, user, trained, tmp_path):
    def said(*arguments: object) -> str:
        return refused(*user(command, *arguments))

    assert "rd: is a preset, which has no weights; train it first" in said("rd")
    assert "nowhere is not a run directory" in said("nowhere")
    unfinished = tmp_path / "unfinished"
    shutil.copytree(trained / RD, unfinished)
    shutil.rmtree(unfinished / "model")
    assert "has no final model yet; let its training end" in said(unfinished)
    (tmp_path / "short.txt").write_text("too short")
    assert "one window of length 64 needs 65" in said(RD, "--text", tmp_path / "short.txt")
    (tmp_path / "empty.txt").write_text("\n")
    assert "holds no text" in said(RD, "--text", tmp_path / "empty.txt")
    assert "no regular file matches" in said(RD, "--text", tmp_path / "missing.txt")
    assert "is less than one window of the run, 64 tokens" in said(RD, "--tokens", 63)
    assert "has no such set (choices: validation)" in said(RD, "--held-out", "books")
    both = said(RD, "--held-out", "validation", "--text", trained / "text.txt")
    assert "--text gives the text already" in both
    assert "does not hold the data that whole/runs/rd/1 was trained on" in said(RD, "--data", tmp_path)
    other = tmp_path / "other"
    shutil.copytree(trained / RD, other)
    tokenizer = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(tokenizer.replace("<|endoftext|>", "</s>"))
    assert "not the tokenizer of this run" in said(other, "--text", trained / "text.txt")
    assert not (trained / RD / "inspect").exists()


def test_what_inspect_cannot_show_together_is_said(user):
    three = refused(*user("inspect", RD, PRENORM, "whole/runs/rd/3"))
    assert "3 runs: one or two can be seen side by side" in three
    assert "whole: is a study, which stands alone" in refused(*user("inspect", "whole", RD))


def test_intervene_says_that_prenorm_has_nothing_to_change(user):
    message = refused(*user("intervene", PRENORM, "--tokens", 512))
    assert message == "error: residual 'additive' exposes no depth weights, so there is nothing to change\n"


def test_without_pyarrow_inspect_says_what_to_install_before_it_works(user, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "writing Parquet needs pyarrow: pip install 'depthroute[parquet]'" in refused(*user("inspect", RD))


def test_a_place_that_cannot_be_written_is_refused_before_the_work(user, tmp_path):
    (tmp_path / "file").write_text("mine")
    message = refused(*user("inspect", RD, "--out", tmp_path / "file" / "below"))
    assert message == f"error: {tmp_path}/file/below: cannot be written; name another place with --out\n"
    assert (tmp_path / "file").read_text() == "mine"


def test_no_table_of_an_earlier_text_is_left_beside_new_numbers(tmp_path):
    def written(tables: dict[str, list[dict[str, int]]], parquet: bool) -> set[str]:
        write({"run": [{"run": "run", "seed": 1, "tables": tables}]}, tmp_path, parquet)
        return {path.name for path in tmp_path.iterdir()}

    tables = {"weights": [{"site": 1}], "depth": [{"site": 0}]}
    assert written(tables, True) == {"inspect.json", "weights.parquet", "depth.parquet"}
    assert written(tables | {"weights": []}, True) == {"inspect.json", "depth.parquet"}
    assert written(tables, False) == {"inspect.json"}
