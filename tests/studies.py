"""A tiny study on generated text, for the tests of the comparison."""

import fcntl
import io
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from depthroute.study.conduct import conduct
from depthroute.study.execute import Outcome
from depthroute.study.plan import read_study

WORDS = ("depth", "route", "layer", "source", "query", "block", "value", "mixed", "token", "site")
STEPS = 60


def write_text(folder: Path) -> Path:
    """Text with some order in it: runs of words, each likely to follow the one before it in the list."""
    choice, at, words = random.Random(0), 0, []
    for _ in range(40000):
        at = (at + (1 if choice.random() < 0.7 else choice.randrange(len(WORDS)))) % len(WORDS)
        words.append(WORDS[at])
    path = folder / "text.txt"
    path.write_text("\n".join(" ".join(words[i : i + 12]) for i in range(0, len(words), 12)), encoding="utf-8")
    return path


def raw_study(text: Path) -> dict[str, Any]:
    """Plain data of a study of two arms and two seeds."""
    return {
        "question": "Does a read from depth help here?",
        "base": {
            "data": {
                "corpus": {"files": [str(text)], "split": "document", "validation": 0.3},
                "tokenizer": "byte",
            },
            "model": {"width": 32, "layers": 2, "heads": 2, "hidden": 48, "embedding_std": 1.0, "residual": "prenorm"},
            "tokens": STEPS * 512,
            "batch": 8,
            "length": 64,
            "schedule": {"warmup": 4},
            "evaluation": {"tokens": 2048},
            "checkpoint": {"every": 5},
            "device": "cpu",
        },
        "arms": {
            "prenorm": None,
            "rd": {"model": {"residual": {"preset": "rd", "blocks": 2}}},
        },
        "seeds": [3, 1],
    }


def write_study(folder: Path, raw: dict[str, Any], name: str = "study.yaml") -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
    return path


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "depthroute", *map(str, arguments)]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


def depthroute(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=cwd, env=environment(), capture_output=True, text=True, timeout=240, check=False
    )


def trained_folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder with text, study.yaml and the study trained without a break in `whole`, its output in result.json.

    Parallel test processes share it: whichever comes first makes it.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if hasattr(request.config, "workerinput") else base) / "study"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "result.json").exists():
            study = write_study(folder, raw_study(write_text(folder)))
            done = depthroute("study", "run", study, "--dir", "whole", "--json", cwd=folder)
            assert done.returncode == 0, done.stderr
            assert "whole: planned now, in prereg.json" in done.stderr
            assert "rd seed 1: finished" in done.stderr
            (folder / "result.json").write_text(done.stdout)
    return folder


def again(folder: Path, directory: Path, change: Callable[[dict[str, Any]], object] = dict) -> tuple[Any, Outcome]:
    """Conduct the study in this process, which trains nothing unless something is missing."""
    study = changed_study(folder, directory, change)
    text = study.read_text(encoding="utf-8")
    return conduct(read_study(study), text, directory, folder / "data", Console(file=io.StringIO()), file=study.name)


def changed_study(folder: Path, directory: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The study's file with a change, beside `directory`."""
    raw = raw_study(folder / "text.txt")
    change(raw)
    return write_study(directory.parent, raw, f"{directory.name}.yaml")
