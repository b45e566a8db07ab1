"""The model and the tokenizer of a run whose training has ended."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from depthroute import runs
from depthroute.data.shards import INDEX, TOKENIZER, read_index
from depthroute.data.tokenizer import Tokenizer
from depthroute.errors import DataError, RunError
from depthroute.model.transformer import ModelConfig, Transformer
from depthroute.train.checkpoint import weights


def load_model(run: Path, device: torch.device) -> Transformer:
    """The run's final model on `device`, in fp32, in evaluation mode. RunError if the run has not ended, or is damaged.

    `auto` chooses the implementation anew: the one that the run was trained with may not be available here.
    """
    if not runs.finished(run):
        runs.manifest(run)  # Says so if this is no run at all.
        raise RunError(f"{run}: the run has not ended; finish it with --resume")
    weights_file, description = (run / runs.MODEL / name for name in runs.MODEL_FILES)
    with torch.device("meta"):
        model = Transformer(ModelConfig.model_validate_json(description.read_bytes()))
    model.to_empty(device=device)
    stored, wanted = load_file(weights_file), weights(model)
    if stored.keys() != wanted.keys():
        name = min(stored.keys() ^ wanted.keys())
        raise RunError(f"{weights_file}: was written by another version of depthroute ({name} is only in one of both)")
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(stored[name])
    return model.eval()


def load_tokenizer(run: Path, data_root: Path) -> Tokenizer:
    """The run's tokenizer, from a data set under `data_root` that has it; the texts themselves are not needed.

    DataError if there is none.
    """
    wanted = runs.manifest(run)["tokenizer_digest"]
    for path in sorted(data_root.glob(f"[!.]*/{INDEX}")):
        entry = read_index(path.parent).tokenizer
        if entry.digest == wanted:
            file = path.with_name(TOKENIZER)
            found = Tokenizer(file.read_text(encoding="utf-8"), str(file), entry.end_token)
            if found.digest != wanted:
                raise DataError(f"{file}: damaged, it is not the tokenizer of its {INDEX}: delete {path.parent}")
            return found
    raise DataError(
        f"{data_root}: holds no data set with the tokenizer of {run}; name the directory that it was trained with by "
        f"--data, or build it again by: depthroute data build {run / runs.CONFIG} --data {data_root}"
    )
