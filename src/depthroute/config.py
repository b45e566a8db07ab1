"""The configuration of one run: plain frozen data, YAML both ways, and a digest that names it.

`load` reads a file and applies `a.b=c` settings; `from_dict` takes plain data. Both replace the shorthands of `presets`
(`model.size`, `model.residual.preset`) by what they stand for, so that a stored configuration means the same for ever.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from depthroute.data.config import DataConfig
from depthroute.errors import ConfigError
from depthroute.model.transformer import ModelConfig, Reads, Recompute
from depthroute.ops import resolve
from depthroute.presets import expand_model
from depthroute.schema import Schema

Fraction = Annotated[float, Field(ge=0, le=1)]
Below1 = Annotated[float, Field(ge=0, lt=1)]
NotNegative = Annotated[float, Field(ge=0)]


class MatricesConfig(Schema):
    """Two-dimensional weights inside the layers. The learning rate is 0.02 for Muon, 0.003 for AdamW unless given."""

    method: Literal["muon", "adamw"] = "muon"
    learning_rate: PositiveFloat
    weight_decay: NotNegative = 0.1
    momentum: Below1 = 0.95
    """Of Muon."""
    adjust_lr: Literal["original", "match_rms_adamw"] = "original"
    """Muon's scale for a shape."""

    @model_validator(mode="before")
    @classmethod
    def _learning_rate_of_method(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and "learning_rate" not in raw:
            raw = raw | {"learning_rate": 0.003 if raw.get("method") == "adamw" else 0.02}
        return raw


class OptimizerConfig(Schema):
    """Learning rates by kind of parameter. All but the matrices take AdamW without decay."""

    matrices: MatricesConfig = Field(default_factory=lambda: MatricesConfig.parse({}))
    embedding: PositiveFloat = 0.01
    head: PositiveFloat = 0.01
    gains: PositiveFloat = 0.003
    """Of norms."""
    queries: PositiveFloat = 0.003
    """Of depth reads, with their gains and temperatures."""
    betas: tuple[Below1, Below1] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8


class ScheduleConfig(Schema):
    """Learning rate over the steps: linear warm-up, then constant with a linear end (`wsd`) or a half cosine."""

    kind: Literal["wsd", "cosine"] = "wsd"
    warmup: Annotated[int, Field(ge=0)] = 20
    """Steps."""
    decay: Fraction = 0.2
    """Of all steps, `wsd` only."""
    final: Fraction = 0.1
    """Of the peak, at the end."""


class EvaluationConfig(Schema):
    """When to evaluate beside the end: at `milestones` or every `every` tokens, at the first step that reaches them."""

    milestones: tuple[Annotated[int, Field(ge=0)], ...] = ()
    every: PositiveInt | None = None
    tokens: PositiveInt | None = None
    """At most so many of each held-out set; null for all."""

    @model_validator(mode="after")
    def _one_way(self) -> "EvaluationConfig":
        if self.milestones and self.every:
            raise ValueError("give milestones or every, not both")
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError("milestones must rise")
        return self


class CheckpointConfig(Schema):
    every: PositiveInt = 100
    """Steps."""
    keep: PositiveInt = 2


class Config(Schema):
    """One run. A step takes `batch` sequences of `length` tokens, `batch / accumulation` at a time."""

    model: ModelConfig
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    batch: PositiveInt = 8
    length: PositiveInt = 128
    accumulation: PositiveInt = 1
    tokens: PositiveInt = 1_000_000
    """Budget; the last step may pass it by less than a batch."""
    seed: Annotated[int, Field(ge=0)] = 0
    clip: PositiveFloat | None = 1.0
    """Largest gradient norm; null for none."""
    z_loss: NotNegative = 1e-5
    """Coefficient of the squared log-normaliser."""
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 is autocast over fp32 weights."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    impl: str = "auto"
    """Of the depth reads; `auto` is resolved when the model is built."""
    reads: Reads = "auto"
    """All sources of a site at once, or a block's finished ones ahead; `auto` is resolved when the model is built."""
    compile: bool = False
    """Whether torch.compile makes each sublayer one piece."""
    recompute: Recompute = "none"
    """What backward computes again instead of keeping it: nothing, each layer or each block."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Of the CPU; null for torch's choice."""
    deterministic: bool = True
    track: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Where metrics are shown beside metrics.jsonl. Decides nothing of a run, so no digest or comparison knows it."""

    @model_validator(mode="after")
    def _fits_together(self) -> "Config":
        if self.batch % self.accumulation:
            raise ValueError(f"accumulation {self.accumulation} does not divide batch {self.batch}")
        resolve(self.impl)
        if self.schedule.warmup >= self.steps:
            raise ValueError(
                f"schedule.warmup {self.schedule.warmup} leaves none of the {self.steps} steps that {self.tokens} "
                f"tokens make at {self.batch} x {self.length} a step; lower it or raise tokens"
            )
        if self.evaluation.tokens and self.evaluation.tokens < self.length:
            raise ValueError(
                f"evaluation.tokens {self.evaluation.tokens} is less than one window of length {self.length}"
            )
        if self.evaluation.milestones and self.evaluation.milestones[-1] > self.tokens:
            raise ValueError(f"evaluation.milestones reach {self.evaluation.milestones[-1]}, tokens {self.tokens}")
        return self

    @property
    def tokens_per_step(self) -> int:
        return self.batch * self.length

    @property
    def steps(self) -> int:
        return -(-self.tokens // self.tokens_per_step)


class Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice and reads `1e-3` as a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key must be a word", problem_mark=key_node.start_mark)
            key = key_node.value
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"key '{key}' is given twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def load(path: str | PathLike[str], sets: Sequence[str] = ()) -> Config:
    """The configuration in a YAML file, with settings `a.b=c` put over it."""
    raw = read_yaml(Path(path))
    if "arms" in raw and "seeds" in raw:
        raise ConfigError(f"{path}: describes a study; use depthroute study run {path}")
    for setting in sets:
        raw = apply_set(raw, setting)
    try:
        return from_dict(raw)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def from_dict(raw: Mapping[str, Any]) -> Config:
    """The configuration that plain data describes. ConfigError names the key that is wrong."""
    model = raw.get("model")
    if isinstance(model, Mapping):
        raw = {**raw, "model": expand_model(dict(model))}
    return Config.parse(raw)


def dump(config: Config) -> str:
    """YAML that `load` reads back as an equal configuration."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def digest(config: Config) -> str:
    """sha256 of all that decides a run, independent of the order and spelling of its source."""
    plain = json.dumps(deciding(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()


def deciding(config: Config) -> dict[str, Any]:
    """The configuration as plain data, without what changes no bit of a run."""
    return config.model_dump(mode="json", exclude={"track"})


def first_difference(a: Config, b: Config) -> str | None:
    """The first dotted key in which two configurations differ; None if they are equal."""
    left, right = flatten(deciding(a)), flatten(deciding(b))
    return next((key for key in {**left, **right} if left.get(key, ABSENT) != right.get(key, ABSENT)), None)


ABSENT = "absent"


def value_at(config: Config, key: str) -> Any:
    """The value under a dotted key, for a message; `absent` where the configuration has no such key."""
    return flatten(config.model_dump(mode="json")).get(key, ABSENT)


def flatten(raw: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted key. An empty mapping is a leaf."""
    leaves: dict[str, Any] = {}
    for key, value in raw.items():
        dotted = f"{prefix}{key}"
        leaves |= flatten(value, f"{dotted}.") if isinstance(value, Mapping) and value else {dotted: value}
    return leaves


def apply_set(raw: Mapping[str, Any], setting: str) -> dict[str, Any]:
    """A copy of `raw` with the setting `a.b=c` in it; c is YAML."""
    dotted, equals, text = setting.partition("=")
    keys = dotted.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"--set {setting}: write it as key.key=value")
    return with_value(raw, keys, parse_yaml(text, f"--set {setting}"), setting)


def with_value(raw: Mapping[str, Any], keys: Sequence[str], value: Any, setting: str) -> dict[str, Any]:
    head, *rest = keys
    if not rest:
        return {**raw, head: value}
    inner = raw.get(head)
    if inner is None:
        inner = {}
    if not isinstance(inner, Mapping):
        raise ConfigError(f"--set {setting}: {head} is {inner!r}, which has no key {rest[0]}")
    return {**raw, head: with_value(inner, rest, value, setting)}


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a directory; name a YAML file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    raw = parse_yaml(text, str(path))
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: must be a mapping of keys to values")
    return raw


def parse_yaml(text: str, where: str) -> Any:
    try:
        return yaml.load(text, Loader)
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}:" if error.problem_mark else ""
        raise ConfigError(f"{where}:{line} {error.problem}") from None
    # PyYAML lets a value that does not fit its tag, such as the date 2020-99-99, out as whatever Python raised.
    except (yaml.YAMLError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{where}: not YAML that can be read: {' '.join(str(error).split())}") from None
