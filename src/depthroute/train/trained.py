"""What a finished run leaves for use: its model, its tokenizer, its configuration."""

import json
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch

from depthroute import config as configuration
from depthroute import runs
from depthroute.config import Config
from depthroute.data import FileTokenizer, Tokenizer
from depthroute.errors import ArgumentError, RunError
from depthroute.model.transformer import ModelConfig, Transformer
from depthroute.presets import PRESETS


class Trained(NamedTuple):
    model: Transformer
    tokenizer: Tokenizer


def load(run: str | PathLike[str], device: torch.device | str = "cpu", impl: str = "auto") -> Trained:
    """The final model and the tokenizer of a run, both checked against what the run recorded of them.

    Raises:
        RunError: as `load_model`; the tokenizer is missing, or another than that of the training.
    """
    return Trained(load_model(run, device, impl), load_tokenizer(run))


def load_model(run: str | PathLike[str], device: torch.device | str = "cpu", impl: str = "auto") -> Transformer:
    """The run's final model on `device`, in fp32, in evaluation mode.

    `auto` chooses the implementation anew: the one that the run was trained with may not be available here.

    Raises:
        ArgumentError: there is no such device.
        RunError: the directory is no run's, the run has not ended, or its model is damaged or of another version.
    """
    run = Path(run)
    check_device(device)
    check_finished(run)
    weights, description = (run / runs.MODEL / name for name in runs.MODEL_FILES)
    with torch.device("meta"):
        model = Transformer(ModelConfig.parse(json.loads(description.read_bytes()), str(description)), impl)
    stored = safetensors.torch.load_file(weights, str(device))
    unlike = min(stored.keys() ^ model.state_dict().keys(), default=None)
    if unlike is not None:
        raise RunError(f"{weights}: was written by another version of depthroute ({unlike} is only in one of both)")
    model.load_state_dict(stored, assign=True)
    return model.eval()


def check_device(device: torch.device | str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:  # torch's words are several lines
        raise ArgumentError(f"device: {device} cannot be used: {str(error).splitlines()[0]}") from None


def check_finished(run: Path) -> None:
    """RunError unless the run has ended."""
    if str(run) in PRESETS and not run.exists():
        raise RunError(f"{run}: is a preset, which has no weights; train it first, then name the run's directory")
    runs.check_run(run)
    if not runs.finished(run):
        raise RunError(f"{run}: has no final model yet; let its training end (if it was stopped, with --resume)")


def load_tokenizer(run: str | PathLike[str]) -> Tokenizer:
    """The tokenizer in the run's directory. RunError if it is missing, or not the one that the run was trained with."""
    run = Path(run)
    path, digest = run / runs.TOKENIZER, runs.manifest(run)["tokenizer_digest"]
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RunError(f"{path}: missing; copy the {runs.TOKENIZER} of the data set that it was trained on") from None
    tokenizer = Tokenizer(text, str(path), end_token(run))
    if tokenizer.digest != digest:
        raise RunError(f"{path}: not the tokenizer of this run (its digest is not the manifest's); copy the right one")
    return tokenizer


def end_token(run: Path) -> str | None:
    """The end-of-text token that the run's configuration names; None for a usual one."""
    trained = configuration_of(run)
    tokenizer = None if trained is None else trained.data.tokenizer
    return tokenizer.end if isinstance(tokenizer, FileTokenizer) else None


def configuration_of(run: Path) -> Config | None:
    """What the run was trained by; None if it was imported."""
    return configuration.load(run / runs.CONFIG) if (run / runs.CONFIG).is_file() else None


def trained_by(run: Path) -> Config:
    """The configuration of a run. RunError if it was imported: nothing then says how long its windows were."""
    found = configuration_of(run)
    if found is None:
        raise RunError(f"{run}: was imported, so nothing says how it was trained; name a run that was trained here")
    return found
