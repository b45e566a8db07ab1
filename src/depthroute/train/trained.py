"""What a finished run leaves for use: its model, its tokenizer."""

import json
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch

from depthroute import config as configuration
from depthroute import runs
from depthroute.config import Config
from depthroute.data import FileTokenizer, Tokenizer
from depthroute.errors import RunError
from depthroute.model.transformer import ModelConfig, Transformer


class Trained(NamedTuple):
    model: Transformer
    tokenizer: Tokenizer


def load(run: Path, device: torch.device, impl: str = "auto") -> Trained:
    """The final model and the tokenizer of a run, both checked against what the run recorded of them."""
    check_finished(run)
    return Trained(load_model(run, device, impl), load_tokenizer(run))


def check_finished(run: Path) -> None:
    """RunError unless the run has ended."""
    runs.check_run(run)
    if not runs.finished(run):
        raise RunError(f"{run}: has no final model yet; let its training end (if it was stopped, with --resume)")


def load_model(run: Path, device: torch.device, impl: str = "auto") -> Transformer:
    with torch.device("meta"):
        model = Transformer(ModelConfig.parse(json.loads((run / runs.MODEL / "config.json").read_bytes())), impl)
    tensors = safetensors.torch.load_file(run / runs.MODEL / "model.safetensors", str(device))
    model.load_state_dict(tensors, assign=True)
    return model.eval()


def load_tokenizer(run: Path) -> Tokenizer:
    """RunError if it is not the one that the run was trained with."""
    path, digest = run / runs.TOKENIZER, runs.manifest(run)["tokenizer_digest"]
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RunError(
            f"{path}: missing, as in runs of version 0.1.0 and older; copy the tokenizer.json of its data set there"
        ) from None
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
