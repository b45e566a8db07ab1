"""The command line as a person meets it."""

import importlib.metadata
import json
import os
import resource
import statistics
import subprocess
import sys

import pytest


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "depthroute", *arguments], capture_output=True, text=True, **options)


def test_help_takes_less_than_half_a_second_of_processor_time_and_lists_the_commands():
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        answer = run("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert answer.returncode == 0
    assert all(
        command in answer.stdout
        for command in ("demo", "train", "study", "eval", "data", "cost", "inspect", "intervene", "presets")
    )
    assert statistics.median(seconds) < 0.5


@pytest.mark.parametrize("arguments", [["--help"], ["study", "run", "--help"], ["train", "--help"], ["data", "--help"]])
def test_help_imports_no_torch(arguments):
    code = f"""
import sys
sys.argv = ["depthroute", *{arguments!r}]
from depthroute.cli import main
try:
    main()
except SystemExit as stop:
    assert stop.code == 0, stop.code
assert "torch" not in sys.modules
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trane"], "No such command 'trane'. Did you mean 'train'?"),
        (["train"], "Missing argument"),
        (["train", "--bogus"], "No such option: --bogus"),
        (["study", "run", "s.yaml", "--workers", "x"], "Invalid value for '--workers'"),
        (["train", "c.yaml", "--run", ""], "Invalid value for '--run': is empty; name a directory"),
        (["data", "list", "--data", " "], "Invalid value for '--data': is empty; name a directory"),
    ],
    ids=str,
)
def test_a_mistake_in_the_words_of_a_command_is_one_line_that_leads_to_its_help(arguments, message):
    answer = run(*arguments)
    assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (2, "", 1)
    assert answer.stderr.startswith(f"error: {message}")
    assert answer.stderr.endswith(" --help\n")


def test_a_reader_who_leaves_early_is_no_error():
    command = f"{sys.executable} -m depthroute presets --json | head -1"
    answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (answer.stdout, answer.stderr) == ("{\n", "")


def test_the_version_is_told():
    assert run("--version").stdout == f"depthroute {importlib.metadata.version('depthroute')}\n"


def test_an_error_of_the_user_is_one_line_and_exit_code_2():
    answer = run("presets", "--size", "tinny")
    assert answer.returncode == 2
    assert answer.stderr == "error: size 'tinny' does not exist (did you mean 'tiny'? choices: " + (
        "tiny, small, rd-s, rd-m, lr-0.5b)\n"
    )


def test_presets_lists_every_system_with_its_parameters():
    listed = json.loads(run("presets", "--json").stdout)
    assert listed["note"].startswith("the low-rank paper's model")
    counts = {row["name"]: row["parameters"] for row in listed["presets"]}
    assert counts["rd-plr"] == 516_632_800
    assert len(counts) == 14
    table = run("presets", "--size", "tiny", env=os.environ | {"COLUMNS": "160"}).stdout
    assert "size tiny: our choice" in table
    assert all(name in table for name in counts)
