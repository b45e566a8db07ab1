"""A tiny run on generated text, for the tests of training."""

import random
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from depthroute import config, runs
from depthroute.config import Config
from depthroute.train.loop import train

WORDS = ["the", "a", "layer", "reads", "writes", "block", "source", "route", "query", "key", "mixes", "depth", "of"]
TIMING = ("tokens_per_second", "seconds")
STEPS = 24
EXAMPLES = Path(__file__).parents[1] / "examples"


def write_texts(folder: Path) -> None:
    draw = random.Random(0)
    for number in range(24):
        text = " ".join(draw.choice(WORDS) for _ in range(120))
        (folder / f"{number}.txt").write_text(f"{number} {text}\n")


def tiny(folder: Path, **changes: Any) -> Config:
    """Two layers of width 32 on the bytes of the texts in `folder`, in 24 steps of 4 x 16 tokens; changes win."""
    return config.from_dict(
        {
            "model": {"width": 32, "layers": 2, "heads": 2, "hidden": 48, "residual": {"preset": "rd", "blocks": 2}},
            "data": {"corpus": {"files": [f"{folder}/*.txt"], "validation": 0.2}, "tokenizer": "byte"},
            "batch": 4,
            "length": 16,
            "tokens": STEPS * 64,
            "schedule": {"warmup": 3},
            "evaluation": {"milestones": [0, 640], "tokens": 512},
            "checkpoint": {"every": 5, "keep": 2},
            "threads": 1,
            "device": "cpu",
        }
        | changes
    )


def trained(folder: Path, name: str, *, resume: bool = False, **changes: Any) -> Path:
    """Train the tiny run into `folder/name`, with the texts and data of `folder`."""
    train(tiny(folder, **changes), folder / name, folder / "data", resume=resume)
    return folder / name


def timeless(run: Path) -> list[dict[str, Any]]:
    """The events of a run without what depends on the clock."""
    return [{key: value for key, value in event.items() if key not in TIMING} for event in runs.metrics(run)]


def weights(run: Path) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in load_file(run / "model/model.safetensors").items()}


def assert_same_run(run: Path, other: Path) -> None:
    """Equal bits in the weights, equal events apart from times."""
    assert weights(run) == weights(other)
    assert timeless(run) == timeless(other)
