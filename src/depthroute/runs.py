"""The run directory: what one training leaves behind, and how every tool reads it. Imports no torch.

config.yaml      the expanded configuration
tokenizer.json   of its data; the manifest holds its digest
manifest.json    its digest, versions, resolved impl, device, data and tokenizer digests, parameter count
metrics.jsonl    one event a line, each with a checksum; the source of truth for every number
checkpoints/     step-00000100/{model.safetensors, optimizer.safetensors, checkpoint.json}
model/           model.safetensors and config.json, once training is over
.lock            held by the process that trains here; empty
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt

from depthroute.errors import RunError
from depthroute.schema import Content

CONFIG, MANIFEST, METRICS, CHECKPOINTS, MODEL = "config.yaml", "manifest.json", "metrics.jsonl", "checkpoints", "model"
TOKENIZER = "tokenizer.json"
MODEL_FILES = ("model.safetensors", "config.json")


class Event(Content):
    """One line of metrics.jsonl. `step` and `tokens` are those trained so far."""

    event: str
    step: NonNegativeInt
    tokens: NonNegativeInt


class Step(Event):
    """Training NLL in nats a token; `seconds` of all steps so far."""

    nll: float
    tokens_per_second: float
    seconds: float


class Evaluation(Event):
    """NLL of one held-out set, in nats a token."""

    held_out: str
    nll: float
    bits_per_byte: float
    tokens_evaluated: int


class End(Event):
    """The last line of a finished run. `model` holds the sha256 of each file of the final model."""

    seconds: float
    model: dict[str, str]


EVENTS: dict[str, type[Event]] = {"step": Step, "evaluation": Evaluation, "end": End}


def write_atomic(path: Path, content: bytes) -> None:
    """Write `content` beside `path`, force it to the disk, then rename: a reader sees the old file or the new one."""
    aside = path.with_name(f".{path.name}.partial")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_directory(path: Path, files: Mapping[str, bytes]) -> None:
    """Make the directory `path` hold exactly `files`: written aside, then renamed as a whole over an older one."""
    aside = path.with_name(f".{path.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        for name, content in files.items():
            write_atomic(aside / name, content)
        if path.exists():
            remove_directory(path)
        aside.rename(path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    sync_directory(path.parent)


def remove_directory(path: Path) -> None:
    """Delete a directory; a kill in the middle leaves nothing that looks like a directory of that name."""
    aside = path.with_name(f".{path.name}.removed")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    shutil.rmtree(aside)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Hold `run` (made if it is missing) for this process. The system frees the lock when the process ends, however."""
    run.mkdir(parents=True, exist_ok=True)
    with (run / ".lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"{run}: another process trains here; wait for it, or choose another --run") from None
        yield


def started(run: Path) -> bool:
    """Whether `run` already holds any part of a run."""
    return any((run / name).exists() for name in (CONFIG, MANIFEST, METRICS, CHECKPOINTS, MODEL))


def manifest(run: str | os.PathLike[str]) -> dict[str, Any]:
    """The parsed manifest.json of a run."""
    path = Path(run) / MANIFEST
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RunError(f"{path}: missing; {run} is not a run directory, or its run never started") from None
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: damaged ({error}); the run cannot be trusted, start it again elsewhere") from None
    if not isinstance(content, dict):
        raise RunError(f"{path}: damaged (not a JSON object); the run cannot be trusted, start it again elsewhere")
    return content


def check_run(path: str | os.PathLike[str]) -> None:
    """RunError unless `path` is a run directory, whether its training has ended or not."""
    path = Path(path)
    if (path / "prereg.json").is_file():
        raise RunError(f"{path}: is a study; name one of its runs, such as {path}/runs/ARM/SEED")
    if path.is_file():
        raise RunError(f"{path}: is a file; name the directory of a run")
    if not (path / MANIFEST).exists() and (path / "config.json").is_file():
        raise RunError(f"{path}: is a Hugging Face model; make it a run first: depthroute export {path} --to run DIR")
    manifest(path)


def metrics(run: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Every event of metrics.jsonl in order. A last line without its end is still being written, and is left out."""
    path = Path(run) / METRICS
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise RunError(f"{path}: missing; {run} is not a run directory, or its run never started") from None
    events = []
    for number, line in enumerate(lines[:-1], start=1):
        event = decode(line)
        if event is None:
            raise RunError(f"{path}: line {number} is damaged; restore the file or start the run again elsewhere")
        events.append(event)
    return events


def finished(run: str | os.PathLike[str]) -> bool:
    """Whether training ended: the last event is `end`, and the model that it vouches for lies in model/."""
    run = Path(run)
    if not (run / METRICS).exists() or not all((run / MODEL / name).is_file() for name in MODEL_FILES):
        return False
    events = metrics(run)
    if not events or events[-1]["event"] != "end":
        return False
    for name, sha256 in model_sums(run).items():
        if events[-1]["model"].get(name) != sha256:
            raise RunError(
                f"{run / MODEL / name}: damaged (its sha256 is not the one that the run's end recorded); "
                f"delete {run / MODEL} and train with --resume to write it again"
            )
    return True


def model_sums(run: Path) -> dict[str, str]:
    """The sha256 of every file of the final model."""
    sums = {}
    for name in MODEL_FILES:
        with (run / MODEL / name).open("rb") as file:
            sums[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return sums


def final_evaluation(run: Path) -> dict[str, dict[str, Any]]:
    """The evaluation of each held-out set at the end of a run, by its name; RunError if the run has not ended."""
    if not finished(run):
        raise RunError(f"{run}: the run has not ended; finish it with --resume")
    events = metrics(run)
    last = events[-1]["step"]
    return {event["held_out"]: event for event in events if event["event"] == "evaluation" and event["step"] == last}


def cut_metrics(run: Path, step: int) -> None:
    """Take metrics.jsonl back to the moment of the checkpoint of `step`: after that step, before its evaluation."""
    path = run / METRICS
    events = metrics(run) if path.exists() else []
    kept = [e for e in events if e["step"] < step or (e["event"] == "step" and e["step"] == step)]
    steps = [e["step"] for e in kept if e["event"] == "step"]
    if steps != list(range(1, step + 1)):
        missing = next(n for n, found in enumerate([*steps, None], start=1) if n != found)
        raise RunError(f"{path}: step {missing} is missing or out of order; restore the file or start elsewhere")
    write_atomic(path, b"".join(encode(event) for event in kept))


SUM = b', "sum": "'


def encode(event: Mapping[str, Any]) -> bytes:
    """The line of an event: one JSON object, whose last key `sum` vouches for all before it."""
    body = json.dumps(event, allow_nan=False).encode()
    return body[:-1] + SUM + line_sum(body) + b'"}\n'


def decode(line: bytes) -> dict[str, Any] | None:
    """The event of a line without its end; None if a byte of it is not the one that was written, or it is no event."""
    start, found, end = line.rpartition(SUM)
    body = start + b"}"
    if not found or end != line_sum(body) + b'"}':
        return None
    try:
        event = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if Event.misfit(event) or EVENTS.get(event["event"], Event).misfit(event):
        return None
    return event


def line_sum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:16].encode()


class MetricsWriter:
    """Appends events to metrics.jsonl. `write` hands a whole line to the system; `sync` forces all to the disk."""

    def __init__(self, run: Path) -> None:
        self._path = run / METRICS
        self._file = self._path.open("ab", buffering=0)

    def write(self, event: str, **fields: Any) -> None:
        line = memoryview(encode({"event": event, **fields}))
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise RunError(f"{self._path}: cannot be written ({error.strerror}); mend it and use --resume") from error

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
