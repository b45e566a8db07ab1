"""Checkpoints: safetensors and JSON in one directory a step, complete or not there.

Model, optimizer state, step, tokens and seconds are everything: batch n is a function of (seed, n), and nothing in
training draws random numbers after the weights are initialised, so there is no random state to keep.
checkpoint.json holds the sha256 of everything; a truncated file or a flipped bit is found before it is loaded.
"""

import hashlib
import json
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors.torch
from torch import Tensor, nn
from torch.optim import Optimizer

from depthroute import runs
from depthroute.errors import RunError

WEIGHTS, STATE, HEADER = "model.safetensors", "optimizer.safetensors", "checkpoint.json"


@dataclass(frozen=True)
class Point:
    """Where a run stands: steps done, tokens seen, seconds spent in training, and under which digests."""

    step: int
    tokens: int
    seconds: float
    config_digest: str
    data_digest: str


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    point: Point
    weights: dict[str, Tensor]
    state: dict[str, Tensor]


def save(run: Path, point: Point, model: nn.Module, optimizers: list[Optimizer], keep: int) -> Path:
    """Write the checkpoint of `point` and delete all but the `keep` newest. RunError if it cannot be written."""
    to = path(run, point.step)
    files = {WEIGHTS: packed(weights(model)), STATE: packed(optimizer_state(model, optimizers))}
    sums = {name: sha256(content) for name, content in files.items()} | {"point": sha256(canonical(point))}
    files[HEADER] = json.dumps({"point": asdict(point), "sha256": sums}, indent=2).encode()
    try:
        runs.write_directory(to, files)
    except OSError as error:
        kept = found(run)
        back = f"{kept[-1]} is whole" if kept else "there is no earlier one"
        raise RunError(f"{to}: cannot be written ({error.strerror}); {back}; mend it and use --resume") from error
    for old in found(run)[:-keep]:
        runs.remove_directory(old)
    for left in to.parent.glob(".step-*"):
        shutil.rmtree(left)
    return to


def path(run: Path, step: int) -> Path:
    return run / runs.CHECKPOINTS / f"step-{step:08d}"


def found(run: Path) -> list[Path]:
    """The checkpoints of a run by rising step, not yet verified."""
    directory = run / runs.CHECKPOINTS
    entries = directory.iterdir() if directory.exists() else ()
    return sorted((entry for entry in entries if re.fullmatch(r"step-\d+", entry.name)), key=step_of)


def newest(run: Path) -> Checkpoint | None:
    """The newest checkpoint, verified; None if there is none. RunError names a damaged file and the way back."""
    paths = found(run)
    if not paths:
        return None
    try:
        return read(paths[-1])
    except RunError as error:
        raise RunError(f"{error}; {way_back(paths)}") from None


def way_back(paths: list[Path]) -> str:
    """What to do when the last of these checkpoints is damaged."""
    for position in range(len(paths) - 2, -1, -1):
        try:
            read(paths[position])
        except RunError:
            continue
        bad = " and ".join(str(path) for path in paths[position + 1 :])
        return f"{paths[position]} is whole: delete {bad} and use --resume to go on from there"
    return f"no earlier checkpoint is whole: delete {paths[0].parent} and use --resume to start from step 0"


def read(directory: Path) -> Checkpoint:
    """Load and verify one checkpoint. RunError names the file that is missing or damaged."""
    try:
        header = json.loads(read_file(directory / HEADER))
        point, sums = Point(**header["point"]), dict(header["sha256"])
    except (ValueError, TypeError, KeyError):
        raise RunError(f"{directory / HEADER}: damaged (not the JSON that was written)") from None
    if sums.get("point") != sha256(canonical(point)) or point.step != step_of(directory):
        raise RunError(f"{directory / HEADER}: damaged (it does not describe {directory.name})")
    return Checkpoint(directory, point, unpacked(directory / WEIGHTS, sums), unpacked(directory / STATE, sums))


def unpacked(file: Path, sums: dict[str, str]) -> dict[str, Tensor]:
    content = read_file(file)
    if sums.get(file.name) != sha256(content):
        raise RunError(f"{file}: damaged (its sha256 is not the one in {HEADER})")
    # A copy: tensors over the file's own bytes would be unaligned and read-only.
    return {key: tensor.clone() for key, tensor in safetensors.torch.load(content).items()}


def read_file(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise RunError(f"{file}: missing") from None


def restore(checkpoint: Checkpoint, model: nn.Module, optimizers: list[Optimizer]) -> None:
    """Put the checkpoint's weights and optimizer state in place, bit for bit."""
    for name, tensor in weights(model).items():
        tensor.copy_(checkpoint.weights[name])
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    of_parameter: dict[str, dict[str, Tensor]] = {}
    for key, tensor in checkpoint.state.items():
        name, _, entry = key.rpartition(":")
        of_parameter.setdefault(name, {})[entry] = tensor
    for optimizer in optimizers:
        ordered = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
        state = {index: of_parameter[name] for index, name in enumerate(ordered) if name in of_parameter}
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The model's state, a tied parameter under its first name only."""
    first = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    return {name: tensor for name, tensor in model.state_dict().items() if name in first}


def optimizer_state(model: nn.Module, optimizers: list[Optimizer]) -> dict[str, Tensor]:
    """Every tensor that the optimizers keep, as `parameter name:entry`."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}:{entry}": tensor
        for optimizer in optimizers
        for parameter, entries in optimizer.state.items()
        for entry, tensor in entries.items()
    }


def packed(tensors: dict[str, Tensor]) -> bytes:
    """The tensors as the content of a safetensors file."""
    return safetensors.torch.save({key: tensor.contiguous() for key, tensor in tensors.items()}, {"format": "pt"})


def canonical(point: Point) -> bytes:
    return json.dumps(asdict(point), sort_keys=True).encode()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def step_of(directory: Path) -> int:
    return int(directory.name.removeprefix("step-"))
