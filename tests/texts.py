"""Small corpora, written where a test wants them."""

import json
import random
from pathlib import Path
from typing import Any

from depthroute.data import DataConfig

WORDS = ("depth", "route", "source", "layer", "query", "weight", "norm", "mixture", "value", "key", "block", "site")


def prose(words: int, seed: int = 0) -> str:
    draw = random.Random(seed)
    return "".join(draw.choice(WORDS) + draw.choice([" ", " ", " ", "\n", ", ", " é "]) for _ in range(words))


def write_files(folder: Path, count: int = 6, words: int = 200) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"text{number}.txt").write_text(prose(words, number), encoding="utf-8")
    return folder


def write_jsonl(path: Path, texts: list[Any], field: str = "text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({field: text}) + "\n" for text in texts), encoding="utf-8")
    return path


def config(
    *files: Path | str, tokenizer: object = "byte", held_out: dict[str, Any] | None = None, **corpus: Any
) -> DataConfig:
    return DataConfig.parse(
        {
            "corpus": {"files": [str(file) for file in files], **corpus},
            "tokenizer": tokenizer,
            "held_out": held_out or {},
        }
    )
