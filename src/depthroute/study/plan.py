"""A study's YAML file, and the runs it stands for: every arm at every seed, validated before anything starts.

question: Does a role-decoupled read beat the shared one?
base: {data: ..., model: ..., steps: ...}        # a run's configuration, without `seed`
arms:
  shared: {model.residual.preset: attnres-block} # what differs from base, dotted or nested
  decoupled: {model.residual.preset: rd}
seeds: [1, 2, 3]
workers: 2
baseline: shared                                 # the first arm, unless named
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, Field, Strict, field_validator, model_validator

from depthroute import config
from depthroute.errors import ConfigError, RunError
from depthroute.schema import Schema, nearest
from depthroute.study.statistics import SIGN_FLIP_PAIRS

ARM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _arm_name(raw: object) -> str:
    if not isinstance(raw, str) or not ARM.fullmatch(raw):
        raise ValueError(
            f"{raw!r} cannot name an arm's directory; use letters, digits, '.', '_' and '-', at most 64, the first a "
            "letter or digit, in quotes where YAML would read a number or a truth value"
        )
    return raw


def _changes(raw: object) -> object:
    """`name:` with nothing behind it is the base itself."""
    return {} if raw is None else raw


ArmName = Annotated[str, BeforeValidator(_arm_name)]
Changes = Annotated[dict[str, Any], BeforeValidator(_changes)]


class Study(Schema):
    """The file, checked as far as it can be without building a run's configuration."""

    question: Annotated[str, Field(min_length=1)]
    base: dict[str, Any]
    arms: dict[ArmName, Changes]
    seeds: list[Annotated[int, Strict()]]
    workers: Annotated[int, Strict(), Field(ge=1)] = 2
    baseline: str | None = None

    @field_validator("base")
    @classmethod
    def _base_without_seed(cls, base: dict[str, Any]) -> dict[str, Any]:
        if "seed" in base:
            raise ValueError("holds 'seed', which a study takes from its own 'seeds'; remove it")
        return base

    @field_validator("arms")
    @classmethod
    def _several_arms(cls, arms: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        if len(arms) < 2:
            raise ValueError(f"a comparison needs at least 2 arms, not {len(arms)}")
        return arms

    @field_validator("seeds")
    @classmethod
    def _seeds(cls, seeds: list[int]) -> list[int]:
        twice = [seed for seed in seeds if seeds.count(seed) > 1]
        if twice:
            raise ValueError(f"{twice[0]} is given twice")
        if len(seeds) < 2:
            raise ValueError(f"at least 2 seeds are needed, not {len(seeds)}: one says nothing about variation")
        if len(seeds) > SIGN_FLIP_PAIRS:
            raise ValueError(f"at most {SIGN_FLIP_PAIRS} seeds, not {len(seeds)}")
        return seeds

    @model_validator(mode="after")
    def _known_baseline(self) -> "Study":
        if self.baseline is not None and self.baseline not in self.arms:
            raise ValueError(f"baseline: no arm '{self.baseline}' {nearest(self.baseline, list(self.arms))}")
        return self

    @property
    def reference(self) -> str:
        """The arm that the others are compared with."""
        return self.baseline or next(iter(self.arms))


@dataclass(frozen=True)
class Planned:
    """One run of a study."""

    arm: str
    seed: int
    config: config.Config

    @property
    def name(self) -> str:
        return f"{self.arm} seed {self.seed}"

    def directory(self, study: Path) -> Path:
        return study / "runs" / self.arm / str(self.seed)

    def log(self, study: Path) -> Path:
        return study / "logs" / self.arm / f"{self.seed}.log"


def read_study(path: Path) -> Study:
    """ConfigError of one line that names the file and the key."""
    raw = config.read_yaml(path)
    try:
        return Study.parse(raw)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def plan_runs(study: Study) -> list[Planned]:
    """Every arm at every seed, seeds outermost so that whole pairs are complete early.

    ConfigError names the arm and the key that is wrong, or that would break the pairing.
    """
    arms = {arm: {seed: _run_config(study, arm, seed) for seed in study.seeds} for arm in study.arms}
    reference = arms[study.reference][study.seeds[0]]
    for arm, by_seed in arms.items():
        differing = _first_unpaired(reference, by_seed[study.seeds[0]])
        if differing:
            raise ConfigError(
                f"arm '{arm}': {differing} differs from arm '{study.reference}', so no pair would be fair"
            )
    return [Planned(arm, seed, arms[arm][seed]) for seed in study.seeds for arm in study.arms]


def check_continues(study: Study, earlier: Study, where: str) -> list[str]:
    """What `study` adds to the one that `where` holds, as lines to print.

    Arms and seeds may be added; question, workers and baseline, which change no run, may differ. RunError names the
    first thing that is missing or that would change a run.
    """
    for kind, ours, theirs in (("arm", study.arms, earlier.arms), ("seed", study.seeds, earlier.seeds)):
        for name in theirs:
            if name not in ours:
                raise RunError(
                    f"{where} holds another study: its {kind} {name} is not in this one; choose another --dir"
                )
    before = earlier.seeds[0]
    for arm in earlier.arms:
        now, then = (_run_config(one, arm, before) for one in (study, earlier))
        key = config.first_difference(then, now)
        if key is not None:
            there, here = config.value_at(then, key), config.value_at(now, key)
            raise RunError(
                f"{where} holds another study: {key} of its arm {arm} is {there!r}, here {here!r}; choose another --dir"
            )
    added = [f"adds arm {arm}" for arm in study.arms if arm not in earlier.arms]
    return added + [f"adds seed {seed}" for seed in study.seeds if seed not in earlier.seeds]


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


def _mapping(value: object) -> Mapping[str, Any] | None:
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else None


def _run_config(study: Study, arm: str, seed: int) -> config.Config:
    try:
        raw = overlay({"threads": 1, **study.base}, study.arms[arm])
        if "seed" in raw:
            raise ConfigError("seed: a study takes it from its own 'seeds'; remove it")
        return config.from_dict({**raw, "seed": seed})
    except ConfigError as error:
        raise ConfigError(f"arm '{arm}': {error}") from None


def _first_unpaired(reference: config.Config, other: config.Config) -> str | None:
    """The first key, among those that decide which tokens are read and judged, in which two arms differ."""
    ours, theirs = (config.flatten(one.model_dump(mode="json")) for one in (reference, other))
    keys = [key for key in {**ours, **theirs} if key.startswith("data.") or key in ("length", "evaluation.tokens")]
    return next((key for key in keys if ours.get(key) != theirs.get(key)), None)
