"""What the files of a study directory hold, as far as their readers rely on it. Imports no torch.

A file of another shape is answered by one line that names the key, and never by a report of something else.
"""

from typing import Any

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from depthroute.schema import Content

Levels = dict[str, str]


class Judged(Content):
    """NLL in nats a token."""

    nll: float
    bits_per_byte: float
    tokens: PositiveInt


class Milestone(Content):
    """NLL by held-out set where a run had trained `tokens`, in `seconds` of steps."""

    step: NonNegativeInt
    tokens: NonNegativeInt
    seconds: NonNegativeFloat
    held_out: dict[str, float]


class Conditions(Content):
    """What a run was trained on and with, as its manifest says."""

    data_digest: str
    tokenizer_digest: str
    parameters: PositiveInt
    impl: str
    device: str
    precision: str
    deterministic: bool
    threads: int | None
    versions: dict[str, str]


class Manifest(Conditions):
    config_digest: str
    vocab: PositiveInt


class Run(Conditions):
    arm: str
    levels: Levels
    seed: int
    replicate: NonNegativeInt
    directory: str
    held_out: dict[str, Judged]
    curve: list[Milestone]
    steps: PositiveInt
    tokens: PositiveInt
    seconds: PositiveFloat
    tokens_per_second: PositiveFloat
    flops_per_token: PositiveInt
    flags: list[str]


class Spread(Content):
    pairs: int
    sd: float


class Contrast(Content):
    """One planned comparison at one combination of levels. What it found is worked out anew from the runs."""

    arm: str
    against: str
    levels: Levels
    held_out: str
    primary: bool
    margin: PositiveFloat | None
    summary: Spread | None


class Missing(Content):
    arm: str
    levels: Levels
    seed: int
    replicate: NonNegativeInt
    state: str
    step: int
    steps: int
    log: str


class Tuned(Content):
    """What was tried for a cell, and what was chosen."""

    grid: dict[str, list[Any]]
    points: list[dict[str, Any]]
    selected: dict[str, Any]
    on_edge: list[str]
    tuned: bool


class Frozen(Tuned):
    """`digest` is that of what decided the choice."""

    digest: str


class TuningPlan(Content):
    seeds: list[int]
    tokens: PositiveInt
    held_out: str
    grids: dict[str, dict[str, list[Any]]]


class Tuning(Content):
    plan: TuningPlan
    cells: dict[str, Tuned]
    warnings: list[str]


class Power(Content):
    words: list[str]


class Amendment(Content):
    date: str
    why: str
    changes: list[str]
    runs_finished: NonNegativeInt


class Machine(Content):
    system: str
    cores: int | None


class Provenance(Content):
    """The plan and the machine; and the distinct values that the runs have of what should be the same for all."""

    plan: str
    date: str
    amendments: list[Amendment]
    machine: Machine
    training_seconds: float
    data_digest: list[str]
    tokenizer_digest: list[str]
    device: list[str]
    precision: list[str]
    threads: list[int | None]
    deterministic: list[bool]
    impl: list[str]
    versions: list[dict[str, str]]


class Sealed(Content):
    """`digest` is that of all the rest."""

    format: int
    digest: str


class Measured(Content):
    """Errors of one cell's implementation against fp64; null where they are not finite."""

    cell: str
    impl: str
    precision: str
    forward: float | None
    gradient: float | None
    worst: str
    within: bool


class Parity(Sealed):
    plan: str
    tolerance: dict[str, float]
    entries: list[Measured]


class Asked(Sealed):
    """What a plan asks and its results answer."""

    question: str
    arms: list[str] = Field(min_length=2)
    baseline: str
    seeds: list[int] = Field(min_length=2)
    cross: dict[str, list[str]]
    level: float = Field(gt=0, lt=0.5)
    power: Power


class Results(Asked):
    runs: list[Run]
    contrasts: list[Contrast]
    missing: list[Missing]
    tuning: Tuning | None
    provenance: Provenance

    @model_validator(mode="after")
    def _names_its_arms(self) -> "Results":
        named = {self.baseline, *(run.arm for run in self.runs)}
        named |= {arm for contrast in self.contrasts for arm in (contrast.arm, contrast.against)}
        if stray := named - {*self.arms}:
            raise ValueError(f"no arm {min(stray)!r} among its arms")
        return self


class PlannedContrast(Content):
    arm: str
    against: str
    held_out: str
    primary: bool
    margin: PositiveFloat | None
    at: Levels


class Replicate(Content):
    arm: str
    seed: int
    at: Levels


class Plan(Asked):
    date: str
    tokens: int | dict[str, int]
    milestones: list[int] | dict[str, list[int]]
    held_out: list[str] = Field(min_length=1)
    contrasts: list[PlannedContrast]
    metric: str
    decision_rule: str
    config_digests: dict[str, str]
    data_digest: str
    tokenizer_digest: str
    versions: dict[str, str]
    impl: str | dict[str, str]
    tuning: TuningPlan | None
    replicates: list[Replicate]
    study: dict[str, Any]
    amendments: list[Amendment]


class TuningFile(Sealed):
    cells: dict[str, Frozen]
