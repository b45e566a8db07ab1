"""The parts of a study's YAML file beside its arms and seeds: contrasts, crossings, tuning, parity and others."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, Strict, field_validator, model_validator

from depthroute.schema import Schema

WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _name(raw: object) -> str:
    if not isinstance(raw, str) or not WORD.fullmatch(raw):
        raise ValueError(
            f"{raw!r} cannot name a directory, as arms, factors and levels do; use letters, digits, '.', '_' and '-', "
            "at most 64, the first a letter or digit, in quotes where YAML would read a number or a truth value"
        )
    return raw


def _changes(raw: object) -> object:
    """`name:` with nothing behind it is the base itself."""
    return {} if raw is None else raw


Name = Annotated[str, BeforeValidator(_name)]
Changes = Annotated[dict[str, Any], BeforeValidator(_changes)]
Seed = Annotated[int, Strict(), Field(ge=0)]
Grid = dict[str, Annotated[list[Any], Field(min_length=1)]]


def first_twice(values: list[Any]) -> Any:
    """The first value that stands twice in a list; None where each stands once."""
    return next((value for index, value in enumerate(values) if value in values[:index]), None)


class ContrastSpec(Schema):
    """One comparison as written. A `margin`, in nats a token, asks for an equivalence test beside the others."""

    arm: str
    against: str | None = None
    """The baseline, unless named."""
    held_out: str = "validation"
    primary: bool = False
    margin: PositiveFloat | None = None
    equivalence: bool | None = None
    """Whether equivalence may be claimed; a margin alone says yes."""
    at: dict[str, str] = Field(default_factory=dict)
    """Levels; every combination of levels that has them is a contrast of its own."""

    @model_validator(mode="after")
    def _margin_where_equivalence(self) -> "ContrastSpec":
        if self.equivalence and self.margin is None:
            raise ValueError("equivalence needs a margin: the largest difference, in nats a token, that is none to you")
        if self.equivalence is False and self.margin is not None:
            raise ValueError("has a margin, but equivalence: false; take one of them away")
        return self


class CrossingSpec(Schema):
    """Each level of a factor against its first: within every arm, and as a difference of differences from the baseline.

    A `margin`, in nats a token, asks for an equivalence test.
    """

    factor: str
    held_out: str = "validation"
    margin: PositiveFloat | None = None


class ParitySpec(Schema):
    """How far an implementation may be from fp64: an error as a share of the largest number, by precision."""

    tolerance: Annotated[dict[Literal["fp32", "bf16"], Annotated[float, Field(gt=0, lt=1)]], Field(min_length=1)]


class PowerSpec(Schema):
    sd: PositiveFloat
    """Assumed standard deviation of paired differences, in nats a token."""


class TuningSpec(Schema):
    """Per arm: which keys are tried at which values, on which seeds and text, with how many tokens a run."""

    seeds: Annotated[list[Seed], Field(min_length=1)]
    tokens: PositiveInt
    held_out: str
    grid: Grid = Field(default_factory=dict)
    """For every arm: the points are all combinations of the values."""
    arms: dict[str, Grid] = Field(default_factory=dict)
    """Further keys, by arm."""
    skip: list[str] = Field(default_factory=list)
    """Arms that are not tuned."""

    @field_validator("seeds")
    @classmethod
    def _seeds_once(cls, seeds: list[int]) -> list[int]:
        if (twice := first_twice(seeds)) is not None:
            raise ValueError(f"{twice} is given twice")
        return seeds

    @model_validator(mode="after")
    def _grids(self) -> "TuningSpec":
        for where, grid in [("grid", self.grid), *((f"arms.{arm}", grid) for arm, grid in self.arms.items())]:
            for key, values in grid.items():
                if (twice := first_twice(values)) is not None:
                    raise ValueError(f"{where}.{key}: {twice} is given twice")
        for arm, grid in self.arms.items():
            if arm in self.skip:
                raise ValueError(f"arms.{arm}: is skipped too; take one of them away")
            if both := next((key for key in grid if key in self.grid), None):
                raise ValueError(f"arms.{arm}.{both}: stands in grid too; take one of them away")
        return self

    def of(self, arm: str) -> Grid:
        """All keys and values that are tried for one arm; empty where it is not tuned."""
        return {} if arm in self.skip else {**self.grid, **self.arms.get(arm, {})}


class ReplicateSpec(Schema):
    """One run to be done once more, at every combination of levels that has the levels of `at`."""

    arm: str
    seed: Annotated[int, Strict()]
    at: dict[str, str] = Field(default_factory=dict)
