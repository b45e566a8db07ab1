import json
import subprocess
import sys
from pathlib import Path

import pytest
from texts import prose, write_files, write_jsonl
from typer.testing import CliRunner

from depthroute.cli.data import app
from depthroute.errors import ConfigError, DepthrouteError


def call(*arguments: str | Path) -> str:
    """Standard output of `depthroute data ...`, in this process; an error comes as the exception that it is."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "depthroute", "data", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def yaml(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "main.jsonl", [prose(20, number) for number in range(60)])
    write_jsonl(tmp_path / "other.jsonl", [prose(20, number) for number in range(50, 70)])
    path = tmp_path / "run.yaml"
    path.write_text(f"""
data:
  corpus: {{files: ["{tmp_path}/*ain.jsonl"], validation: 0.3}}
  tokenizer: byte
  held_out:
    other: {{files: ["{tmp_path}/other.jsonl"], validation: 1.0}}
""")
    return path


def test_build_and_list_tell_the_same_sizes(tmp_path: Path, yaml: Path) -> None:
    built = json.loads(call("build", yaml, "--data", tmp_path / "data", "--json"))
    listed = json.loads(call("list", "--data", tmp_path / "data", "--json"))
    assert built == listed
    assert list(built[0]["parts"]) == ["train", "validation", "other"]
    assert built[0]["vocab"] == 257
    assert 0 < built[0]["parts"]["other"]["dropped"]["leaks"] <= 10


def test_a_setting_changes_what_is_built(tmp_path: Path, yaml: Path) -> None:
    settings = ("--set", "data.tokenizer={bpe: 290}", "--set", "data.held_out={}")
    (row,) = json.loads(call("build", yaml, *settings, "--data", tmp_path / "data", "--json"))
    assert (row["vocab"], list(row["parts"])) == (290, ["train", "validation"])


def test_the_table_says_what_was_dropped(tmp_path: Path, yaml: Path) -> None:
    table = " ".join(call("build", yaml, "--data", tmp_path / "data").split())
    (directory,) = (tmp_path / "data").glob("main-byte-*")
    assert f"{directory} " in table
    assert "leaks" in table


def test_in_a_pipe_progress_is_plain_lines_on_stderr(tmp_path: Path, yaml: Path) -> None:
    done = run("build", yaml, "--data", tmp_path / "data", "--json")
    assert done.returncode == 0
    assert len(json.loads(done.stdout)) == 1
    assert "data: reading" in done.stderr
    assert "\x1b" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("build", "python-dogs"), "corpus: unknown corpus 'python-dogs' (did you mean 'python-docs'? choices:"),
        (("build", "python-docs", "--tokenizer", "bpe:many"), "--tokenizer bpe:many: write bpe:VOCABULARY with a"),
        (("build", "python-docs", "--tokenizer", "bpe:12"), "tokenizer: bpe: a vocabulary of 12 is too small"),
        (("build", "python-docs", "--tokenizer", "none.json"), "tokenizer file none.json: cannot be read"),
        (("build", "python-docs", "--set", "a=b"), "--set goes with a file; with a corpus name use --tokenizer"),
        (("build", "run.yaml", "--tokenizer", "byte"), "--tokenizer goes with a corpus name; with a file use --set"),
        (("build", "pyproject.toml"), "pyproject.toml: line"),
        (("build", "missing.yaml"), "missing.yaml: no such file"),
        (("list", "--data", "missing"), "missing: no such directory: build something first"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(DepthrouteError) as caught:
        call(*arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_user_s_error_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = run("build", "python-dogs", "--data", tmp_path / "data")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: corpus: unknown corpus 'python-dogs'")
    assert done.stderr.count("\n") == 1


def test_list_shows_the_good_and_names_the_damaged(tmp_path: Path, yaml: Path) -> None:
    data = tmp_path / "data"
    call("build", yaml, "--data", data)
    write_files(data / "raw texts of mine")
    (data / "bad").mkdir()
    (data / "bad" / "index.json").write_text("{}")
    done = run("list", "--data", data, "--json")
    assert (done.returncode, len(json.loads(done.stdout))) == (2, 1)
    assert done.stderr.startswith(f"error: {data}/bad/index.json: damaged")


def test_an_unknown_key_of_the_file_is_named_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("data: {corpora: python-docs}")
    with pytest.raises(ConfigError, match=r"data.corpora: unknown key \(did you mean 'corpus'\?"):
        call("build", tmp_path / "run.yaml")
