"""What happens before the first step: may this run start or go on here, with this configuration, data and machine?"""

import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from depthroute import config as configuration
from depthroute import launch, runs
from depthroute.config import Config
from depthroute.data.shards import Dataset
from depthroute.errors import ConfigError, RunError
from depthroute.model.cost import cost
from depthroute.model.transformer import Transformer
from depthroute.train import device as devices

VERSIONS = ("torch", "numpy", "depthroute")
ELEMENT = {"fp32": 4, "bf16": 2}
"""Bytes of a coordinate."""


def check_directory(run: Path, config: Config, resume: bool) -> None:
    """RunError if the directory holds a run and `resume` is off, or a run of another configuration."""
    if runs.started(run) and not resume:
        raise RunError(f"{run}: already holds a run; go on with it by --resume, or choose another --run")
    if not (run / runs.CONFIG).exists():
        return
    try:
        before = configuration.load(run / runs.CONFIG)
    except ConfigError as error:
        raise RunError(f"{run / runs.CONFIG}: cannot be read ({error}); restore it, or start elsewhere") from None
    key = configuration.first_difference(before, config)
    if key is not None:
        was, now = configuration.value_at(before, key), configuration.value_at(config, key)
        raise RunError(f"{run}: cannot resume with another configuration: {key} was {was!r}, now {now!r}")


def build_model(config: Config, vocab: int, device: torch.device) -> Transformer:
    """The run's model with its initial weights. ConfigError if its vocabulary is too small for the tokenizer's."""
    given = config.model.vocab
    if given is not None and given < vocab:
        raise ConfigError(f"model.vocab: {given} is smaller than the tokenizer's {vocab}; leave it out or raise it")
    devices.check_memory(config, given or vocab, device)
    model_config = config.model if given is not None else config.model.model_copy(update={"vocab": vocab})
    with device:
        model = Transformer(
            model_config, config.impl, reads=config.reads, compile=config.compile, recompute=config.recompute
        )
    return model.initialise(config.seed)


def record(run: Path, config: Config, model: Transformer, data: Dataset, device: torch.device) -> dict[str, Any]:
    """Write what describes the run, or compare with what is there of the run that goes on. Returns the manifest."""
    now = describe(config, model, data, device)
    if (run / runs.MANIFEST).exists():
        compare(run, runs.manifest(run), now)
    else:
        runs.write_atomic(run / runs.CONFIG, configuration.dump(config).encode())
        runs.write_atomic(run / runs.TOKENIZER, data.tokenizer.json.encode())
        runs.write_atomic(run / runs.MANIFEST, json.dumps(now, indent=2).encode() + b"\n")
    return now


def describe(config: Config, model: Transformer, data: Dataset, device: torch.device) -> dict[str, Any]:
    return {
        "config_digest": configuration.digest(config),
        "data_digest": data.digest,
        "tokenizer_digest": data.tokenizer_digest,
        "vocab": model.config.vocab,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "impl": model.impl,
        "reads": model.reads,
        "device": devices.name(device),
        "precision": config.precision,
        "deterministic": config.deterministic,
        "threads": torch.get_num_threads(),
        "allocator": launch.allocator(),
        "cost": cost(model.config, config.length, element=ELEMENT[config.precision], stages=1).plain(),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in VERSIONS},
    }


def compare(run: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """RunError unless the run goes on under the very conditions it began with.

    Its bits depend on all of them, but for the allocator, which decides speed alone, and the cost, which follows from
    the configuration.
    """
    then, here = (configuration.flatten({**manifest, "allocator": 0, "cost": 0}) for manifest in (before, now))
    key = next((key for key in {**then, **here} if then.get(key) != here.get(key)), None)
    if key is not None:
        raise RunError(
            f"{run}: cannot resume, its bits would differ: {key} in {runs.MANIFEST} is {then.get(key)!r}, "
            f"now {here.get(key)!r}; restore that, or start anew with another --run"
        )
