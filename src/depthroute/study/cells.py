"""Where a run stands in its study: its arm, the levels of the crossed factors, its seed, its replicate or tuning point.

runs/ARM[/FACTOR=LEVEL...]/SEED[.replicate-N]    a run, and the same run once more
tuning/ARM[/FACTOR=LEVEL...]/POINT/SEED          a run that only chooses values; POINT is a digest of what it tries
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from depthroute import config
from depthroute.errors import ConfigError

NO_LEVELS: Mapping[str, str] = {}


def cell_name(arm: str, levels: Mapping[str, str]) -> str:
    """`rd|size=S|rate=low`: the key of an arm at a combination of levels."""
    return "|".join([arm, *(f"{factor}={level}" for factor, level in levels.items())])


@dataclass(frozen=True)
class Planned:
    """One run of a study. `point` holds the values that a tuning run tries; None for all others."""

    arm: str
    seed: int
    config: config.Config
    levels: Mapping[str, str] = field(default_factory=lambda: NO_LEVELS)
    replicate: int = 0
    point: Mapping[str, Any] | None = None

    @property
    def cell(self) -> str:
        return cell_name(self.arm, self.levels)

    @property
    def name(self) -> str:
        words = [self.arm, *(f"{factor}={level}" for factor, level in self.levels.items())]
        if self.point is not None:
            words += ["with", point_words(self.point)]
        words += ["seed", str(self.seed)]
        return " ".join([*words, "replicate", str(self.replicate)] if self.replicate else words)

    @property
    def place(self) -> Path:
        """Of the run's directory in that of the study."""
        return Path("runs" if self.point is None else "tuning") / self._below / self._last

    def directory(self, study: Path) -> Path:
        return study / self.place

    def log(self, study: Path) -> Path:
        return study / self._beside("logs") / f"{self._last}.log"

    def config_file(self, study: Path) -> Path:
        return study / self._beside("configs") / f"{self._last}.yaml"

    def failure_file(self, study: Path) -> Path:
        return study / self._beside("logs") / f"{self._last}.failed"

    @property
    def _last(self) -> str:
        return f"{self.seed}.replicate-{self.replicate}" if self.replicate else str(self.seed)

    @property
    def _below(self) -> Path:
        levels = [f"{factor}={level}" for factor, level in self.levels.items()]
        return Path(self.arm, *levels, *([] if self.point is None else [point_digest(self.point)]))

    def _beside(self, kind: str) -> Path:
        return Path(kind if self.point is None else f"tuning-{kind}") / self._below


def point_words(values: Mapping[str, Any]) -> str:
    """`learning_rate=0.01 embedding_std=1`: values under the last words of their keys, for the eye."""
    return " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in values.items())


def point_digest(values: Mapping[str, Any]) -> str:
    """A directory's name that stays the same when a grid grows."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]


def overlay(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` over it. A mapping is merged into the one there; the value of a dotted key replaces it."""
    merged = dict(base)
    for key, value in changes.items():
        head, dot, rest = str(key).partition(".")
        below = _mapping(merged.get(head))
        if dot:
            if below is None and merged.get(head) is not None:
                raise ConfigError(f"{key}: {head} is {merged[head]!r}, which has no key {rest}")
            inner = below or {}
            merged[head] = overlay(inner, {rest: value}) if "." in rest else {**inner, rest: value}
        elif below is not None and (over := _mapping(value)) is not None:
            merged[head] = overlay(below, over)
        else:
            merged[head] = value
    return merged


def clash(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The first key of `one` that `other` sets too, itself or as a part or the whole of it."""
    theirs = list(config.flatten(other))
    for key in config.flatten(one):
        if any(key == their or key.startswith(f"{their}.") or their.startswith(f"{key}.") for their in theirs):
            return key
    return None


def unpaired(changes: Mapping[str, Any]) -> str | None:
    """The first key of `changes` that decides which tokens are read and judged, or the seed."""
    return next((key for key in config.flatten(changes) if decides_tokens(key) or key == "seed"), None)


def decides_tokens(key: str) -> bool:
    return key == "data" or key.startswith("data.") or key in ("length", "evaluation.tokens")


def _mapping(value: object) -> Mapping[str, Any] | None:
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else None
