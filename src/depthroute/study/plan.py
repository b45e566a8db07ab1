"""A study's YAML file, and the runs it stands for: every arm at every seed, validated before anything starts.

question: Does a role-decoupled read beat the shared one?
base: {data: ..., model: ..., steps: ...}        # a run's configuration, without `seed`
arms:
  shared: {model.residual.preset: attnres-block} # what differs from base, dotted or nested
  decoupled: {model.residual.preset: rd}
seeds: [1, 2, 3]
workers: 2                                       # runs at a time; one a GPU, or one a CPU core, unless given
baseline: shared                                 # the first arm, unless named
cross: {size: {S: {model.size: tiny}, M: {model.size: small}}}   # every arm at every combination of levels
contrasts: [{arm: decoupled, against: shared, primary: true, margin: 0.005}]    # `at`, `held_out`, `equivalence`
crossings: [{factor: size, margin: 0.005}]       # each level against the first, in every arm and between arms
parity: {tolerance: {fp32: 1.0e-5}}              # of implementations from fp64, asked for where there are several
level: 0.05
power: {sd: 0.01}                                # assumed, for the plan's statement of what can be detected
tuning: {seeds: [101], tokens: 300000, held_out: tuning, grid: {optimizer.queries: [0.001, 0.003]}, arms: {}, skip: []}
replicates: [{arm: shared, seed: 1}]             # the same run once more
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, Strict, field_validator, model_validator

from depthroute import config
from depthroute.errors import ConfigError
from depthroute.schema import Schema, nearest
from depthroute.study.cells import Planned, cell_name, clash, decides_tokens, overlay, unpaired
from depthroute.study.spec import (
    Changes,
    ContrastSpec,
    CrossingSpec,
    Name,
    ParitySpec,
    PowerSpec,
    ReplicateSpec,
    TuningSpec,
    first_twice,
)
from depthroute.study.statistics import SIGN_FLIP_PAIRS

Values = Mapping[str, Any]
NONE: Values = {}


class Study(Schema):
    """The file, checked as far as it can be without building a run's configuration."""

    question: Annotated[str, Field(min_length=1)]
    base: dict[str, Any]
    arms: dict[Name, Changes]
    seeds: list[Annotated[int, Strict()]]
    workers: Annotated[int, Strict(), Field(ge=1)] | None = None
    baseline: str | None = None
    cross: dict[Name, dict[Name, Changes]] = Field(default_factory=dict)
    contrasts: Annotated[list[ContrastSpec], Field(min_length=1)] | None = None
    crossings: list[CrossingSpec] = Field(default_factory=list[CrossingSpec])
    parity: ParitySpec | None = None
    level: Annotated[float, Field(ge=1e-4, lt=0.5)] = 0.05
    power: PowerSpec | None = None
    tuning: TuningSpec | None = None
    replicates: list[ReplicateSpec] = Field(default_factory=list[ReplicateSpec])

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
        if (twice := first_twice(seeds)) is not None:
            raise ValueError(f"{twice} is given twice")
        if len(seeds) < 2:
            raise ValueError(f"at least 2 seeds are needed, not {len(seeds)}: one says nothing about variation")
        if len(seeds) > SIGN_FLIP_PAIRS:
            raise ValueError(f"at most {SIGN_FLIP_PAIRS} seeds, not {len(seeds)}")
        return seeds

    @model_validator(mode="after")
    def _names_fit_together(self) -> "Study":
        self._known_arm("baseline", self.baseline)
        for factor, levels in self.cross.items():
            if len(levels) < 2:
                raise ValueError(f"cross.{factor}: a factor needs at least 2 levels, not {len(levels)}")
        for number, contrast in enumerate(self.contrasts or []):
            where = f"contrasts.{number}"
            self._known_arm(f"{where}.arm", contrast.arm)
            self._known_arm(f"{where}.against", contrast.against)
            self._known_levels(f"{where}.at", contrast.at)
            if contrast.arm == (contrast.against or self.reference):
                raise ValueError(f"{where}: compares arm '{contrast.arm}' with itself")
        for number, crossing in enumerate(self.crossings):
            if crossing.factor not in self.cross:
                choices = nearest(crossing.factor, list(self.cross))
                raise ValueError(f"crossings.{number}.factor: no factor '{crossing.factor}' in cross {choices}")
        for number, again in enumerate(self.replicates):
            self._known_arm(f"replicates.{number}.arm", again.arm)
            self._known_levels(f"replicates.{number}.at", again.at)
            if again.seed not in self.seeds:
                raise ValueError(
                    f"replicates.{number}: no run of arm '{again.arm}' has seed {again.seed}; seeds: {self.seeds}"
                )
        self._tuning_fits()
        return self

    def _tuning_fits(self) -> None:
        if self.tuning is None:
            return
        for arm in (*self.tuning.arms, *self.tuning.skip):
            self._known_arm("tuning", arm)
        shared = [seed for seed in self.tuning.seeds if seed in self.seeds]
        if shared:
            raise ValueError(f"tuning.seeds: {shared[0]} is one of the study's seeds; tune on others")

    def _known_arm(self, where: str, arm: str | None) -> None:
        if arm is not None and arm not in self.arms:
            raise ValueError(f"{where}: no arm '{arm}' {nearest(arm, list(self.arms))}")

    def _known_levels(self, where: str, levels: Mapping[str, str]) -> None:
        for factor, level in levels.items():
            if factor not in self.cross:
                raise ValueError(f"{where}: no factor '{factor}' in cross {nearest(factor, list(self.cross))}")
            if level not in self.cross[factor]:
                choices = list(self.cross[factor])
                raise ValueError(f"{where}: factor '{factor}' has no level '{level}' {nearest(level, choices)}")

    @property
    def reference(self) -> str:
        """The arm that the others are compared with."""
        return self.baseline or next(iter(self.arms))

    @property
    def combinations(self) -> list[dict[str, str]]:
        """Every combination of levels, as `{factor: level}`; one empty combination without factors."""
        return [dict(zip(self.cross, levels, strict=True)) for levels in itertools.product(*self.cross.values())]

    def at(self, levels: Mapping[str, str]) -> list[dict[str, str]]:
        """The combinations that have these levels."""
        return [every for every in self.combinations if levels.items() <= every.items()]


@dataclass(frozen=True)
class Contrast:
    """One comparison: `arm` minus `against` at one combination of levels. `margin` in nats a token, None without."""

    arm: str
    against: str
    held_out: str
    primary: bool
    margin: float | None
    at: dict[str, str]


def read_study(path: Path) -> Study:
    """ConfigError of one line that names the file and the key."""
    raw = config.read_yaml(path)
    if "model" in raw and "arms" not in raw:
        raise ConfigError(f"{path}: describes one run; use depthroute train {path}")
    try:
        return Study.parse(raw)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def contrasts(study: Study) -> list[Contrast]:
    """Every planned comparison. Without `contrasts`: each arm against the baseline on `validation`, none primary."""
    written = study.contrasts
    if written is None:
        written = [ContrastSpec(arm=arm) for arm in study.arms if arm != study.reference]
    return [
        Contrast(one.arm, one.against or study.reference, one.held_out, one.primary, one.margin, at)
        for one in written
        for at in study.at(one.at)
    ]


def plan_runs(study: Study, selected: Mapping[str, Values] | None = None) -> list[Planned]:
    """Every arm at every combination of levels and every seed, seeds outermost so that whole pairs are complete early.

    Replicates come last. `selected` holds the values that tuning chose, by cell. ConfigError names the arm, level or
    contrast and the key that is wrong, or that would break the pairing.
    """
    chosen = selected or {}
    _check_keys(study)
    first = run_config(study, study.reference, study.combinations[0], study.seeds[0])
    _check_held_out(study, first)
    runs = [
        Planned(arm, seed, run_config(study, arm, at, seed, chosen.get(cell_name(arm, at), NONE)), at)
        for seed in study.seeds
        for at in study.combinations
        for arm in study.arms
    ]
    _check_pairs(study, first, [run for run in runs if run.seed == study.seeds[0]])
    return runs + _replicates(study, runs)


def run_config(
    study: Study, arm: str, levels: Mapping[str, str], seed: int, values: Values = NONE, last: Values = NONE
) -> config.Config:
    """Base, arm, levels, then `values` and `last`, one over the other, with the seed. Only `values` is told of."""
    try:
        raw = overlay({"threads": 1, **study.base}, study.arms[arm])
        for factor, level in levels.items():
            raw = overlay(raw, study.cross[factor][level])
        raw = overlay(overlay(raw, values), last)
        if "seed" in raw:
            raise ConfigError("seed: a study takes it from its own 'seeds'; remove it")
        return config.from_dict({**raw, "seed": seed})
    except ConfigError as error:
        where = "".join(f" at {factor}={level}" for factor, level in levels.items())
        tried = "".join(f" with {key}={value}" for key, value in values.items())
        raise ConfigError(f"arm '{arm}'{where}{tried}: {error}") from None


def _replicates(study: Study, runs: Sequence[Planned]) -> list[Planned]:
    again: list[Planned] = []
    for one in study.replicates:
        for run in runs:
            if (run.arm, run.seed) == (one.arm, one.seed) and one.at.items() <= run.levels.items():
                number = 1 + sum((other.cell, other.seed) == (run.cell, run.seed) for other in again)
                again.append(Planned(run.arm, run.seed, run.config, run.levels, number))
    return again


def _check_keys(study: Study) -> None:
    """ConfigError where two places set one key, or where a level or a tuned key would break the pairing."""
    sets: list[tuple[str, str | None, Values]] = [
        (f"arm '{arm}'", None, changes) for arm, changes in study.arms.items()
    ]
    for factor, levels in study.cross.items():
        for level, changes in levels.items():
            where = f"cross.{factor}.{level}"
            if key := unpaired(changes):
                raise ConfigError(f"{where}: {key} must be the same everywhere, or no two runs could be compared")
            for other, other_factor, others in sets:
                if other_factor != factor and (key := clash(changes, others)):
                    raise ConfigError(f"{where}: {key} is set by {other} too; set it in one place")
            sets.append((where, factor, changes))
    if study.tuning is None:
        return
    for arm in study.arms:
        grid = study.tuning.of(arm)
        if key := unpaired(grid) or clash(grid, {"tokens": 0, "impl": ""}):
            raise ConfigError(f"tuning: {key} cannot be tuned: what is chosen must be comparable")
        for place, factor, changes in sets:
            if (factor is not None or place == f"arm '{arm}'") and (key := clash(grid, changes)):
                raise ConfigError(f"tuning: {key} is set by {place} too; set it in one place")


def _check_held_out(study: Study, run: config.Config) -> None:
    """ConfigError for a held-out set that is not there, a contrast given twice, or one on the text of tuning."""
    names = ["validation", *run.data.held_out]
    planned = contrasts(study)
    asked = [("contrasts", f"a contrast of arm '{one.arm}'", one.held_out) for one in planned]
    asked += [("crossings", f"a crossing of factor '{one.factor}'", one.held_out) for one in study.crossings]
    for where, _, held_out in asked:
        if held_out not in names:
            raise ConfigError(f"{where}: no held-out set '{held_out}' in base.data {nearest(held_out, names)}")
    if twice := first_twice([(one.arm, one.against, one.held_out, one.at) for one in planned]):
        raise ConfigError(f"contrasts: arm '{twice[0]}' is compared with '{twice[1]}' on '{twice[2]}' twice")
    if twice := first_twice([({one.arm, one.against}, one.held_out, one.at) for one in planned]):
        one, other = sorted(twice[0])
        raise ConfigError(
            f"contrasts: '{one}' is compared with '{other}' on '{twice[1]}' in both directions; leave one of them out"
        )
    if twice := first_twice([(one.factor, one.held_out) for one in study.crossings]):
        raise ConfigError(f"crossings: factor '{twice[0]}' is crossed on '{twice[1]}' twice")
    if study.tuning is None:
        return
    split = study.tuning.held_out
    if split not in names:
        raise ConfigError(f"tuning.held_out: no held-out set '{split}' in base.data {nearest(split, names)}")
    texts = {"validation": run.data.corpus, **run.data.held_out}
    for _, what, held_out in asked:
        if texts[held_out] == texts[split]:
            raise ConfigError(
                f"tuning.held_out: {what} is judged on the text of '{split}'; tune on another one, as what was chosen "
                "on a text looks good there"
            )


def _check_pairs(study: Study, first: config.Config, runs: Sequence[Planned]) -> None:
    """ConfigError unless all read and are judged on the same tokens, and every level changes something."""
    seen: dict[tuple[str, str], Planned] = {}
    for run in runs:
        differing = _first_unpaired(first, run.config)
        if differing:
            raise ConfigError(
                f"arm '{run.arm}': {differing} differs from arm '{study.reference}', so no pair would be fair"
            )
        same = seen.setdefault((run.arm, config.digest(run.config)), run)
        if same is not run:
            factor = next(factor for factor, level in run.levels.items() if same.levels[factor] != level)
            raise ConfigError(
                f"cross.{factor}: levels '{same.levels[factor]}' and '{run.levels[factor]}' give arm '{run.arm}' the "
                "same configuration; does a key of base or of the arm win over them?"
            )


def _first_unpaired(reference: config.Config, other: config.Config) -> str | None:
    """The first key, among those that decide which tokens are read and judged, in which two arms differ."""
    ours, theirs = (config.flatten(one.model_dump(mode="json")) for one in (reference, other))
    return next((key for key in {**ours, **theirs} if decides_tokens(key) and ours.get(key) != theirs.get(key)), None)
