"""The command line as a person meets it."""

import json
import os
import statistics
import subprocess
import sys
import time

import pytest


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "depthroute", *arguments], capture_output=True, text=True, **options)


def test_help_answers_in_half_a_second_and_lists_the_commands():
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        answer = run("--help")
        seconds.append(time.perf_counter() - begin)
    assert answer.returncode == 0
    assert all(command in answer.stdout for command in ("demo", "train", "study", "data", "presets"))
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


def test_an_unknown_command_exits_with_2():
    answer = run("trane")
    assert answer.returncode == 2
    assert "Traceback" not in answer.stderr


def test_an_error_of_the_user_is_one_line_and_exit_code_2():
    answer = run("presets", "--size", "tinny")
    assert answer.returncode == 2
    assert answer.stderr == "error: size 'tinny' does not exist (did you mean 'tiny'? choices: " + (
        "tiny, small, rd-s, rd-m, lr-0.5b)\n"
    )


def test_presets_lists_every_system_with_its_parameters():
    listed = json.loads(run("presets", "--json").stdout)
    counts = {row["name"]: row["parameters"] for row in listed["presets"]}
    assert counts["rd-plr"] == 516_632_800
    assert len(counts) == 14
    table = run("presets", "--size", "tiny", env=os.environ | {"COLUMNS": "160"}).stdout
    assert all(name in table for name in counts)
