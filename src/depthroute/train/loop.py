"""The training loop. One configuration, one directory, from the first batch to the saved model.

Killed at any moment and resumed, a run ends in the same weights and metrics, bit for bit: a checkpoint holds all that
the next step depends on, batch n is a function of (seed, n), and the metrics are cut back to the checkpoint.
"""

import json
import math
import time
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch.nn.utils import clip_grad_norm_

from depthroute import runs
from depthroute.config import Config, digest
from depthroute.data.batches import Batch, Batches, windows_of
from depthroute.data.building import build
from depthroute.data.shards import Dataset
from depthroute.errors import RunError
from depthroute.model.transformer import Transformer
from depthroute.train import checkpoint, optim, start
from depthroute.train import device as devices
from depthroute.train.checkpoint import Point, packed, weights
from depthroute.train.evaluate import evaluate, evaluation_steps
from depthroute.train.losses import losses, micro_batches
from depthroute.train.progress import TrainingProgress
from depthroute.train.schedule import factor
from depthroute.train.stopping import Interrupted, Stop, StopRequested, stop_requests
from depthroute.train.tracking import Trackers


def train(
    config: Config,
    run: str | PathLike[str],
    data_root: str | PathLike[str],
    *,
    resume: bool = False,
    verbose: bool = False,
) -> None:
    """Train one run into the directory `run`, with its data built under `data_root`.

    With `resume`, go on from the newest checkpoint; a run that has ended is left as it is. `verbose` shows progress on
    stderr. RunError, ConfigError or DataError say in one line why a run cannot start, go on or be trusted;
    `Interrupted` that a signal stopped it, after a checkpoint.
    """
    run = Path(run)
    with runs.locked(run), TrainingProgress(verbose) as progress:
        start.check_directory(run, config, resume)
        if runs.finished(run):
            progress.message(f"{run}: this run has already ended")
            return
        device = devices.choose(config)
        data = Dataset.open(build(config.data, Path(data_root), progress.building))
        for part in data.parts.values():
            windows_of(part, config.length)  # A part too short to evaluate is found now, not at the end.
        with devices.numerics(config), devices.enough_memory(run), stop_requests() as stop:
            model = start.build_model(config, data.vocab, device)
            start.record(run, config, model, data, device)
            Training(config, run, model, data, progress, stop).finish()


class Measured(NamedTuple):
    """What one step measures before it moves the weights."""

    nll: float
    z_loss: float
    grad_norm: float


@final
class Training:
    """A run under way. `model` and `optimizers` are as they stand after `step` steps."""

    def __init__(
        self, config: Config, run: Path, model: Transformer, data: Dataset, progress: TrainingProgress, stop: Stop
    ) -> None:
        self.config, self.run, self.model, self.data = config, run, model, data
        self.progress, self.stop = progress, stop
        self.parameters = list(model.parameters())
        self.device = self.parameters[0].device
        self.optimizers = optim.optimizers(model, config.optimizer)
        self.batches = Batches(data.parts["train"], length=config.length, batch=config.batch, seed=config.seed)
        self.step, self.seconds, self.saved = 0, 0.0, None
        saved = checkpoint.newest(run)
        if saved is not None:
            checkpoint.restore(saved, model, self.optimizers)
            self.step, self.seconds, self.saved = saved.point.step, saved.point.seconds, saved.path
        runs.cut_metrics(run, self.step)
        self.metrics = runs.MetricsWriter(run)
        self.trackers = Trackers(config, run, self.step, progress.message)

    def finish(self) -> None:
        """Train to the end. Asked to stop, save a checkpoint and raise `Interrupted`."""
        self.progress.message(f"{self.run}: {self.model.impl} on {self.device}, from step {self.step}")
        try:
            self.loop()
        except StopRequested:
            self.save()
            message = f"{self.run}: stopped at step {self.step} with a checkpoint; go on with --resume"
            raise Interrupted(message, self.stop.signal_number) from None
        finally:
            self.metrics.close()
            self.trackers.close()

    def loop(self) -> None:
        # A checkpoint stands before the evaluation of its step, so that a run stopped in between makes it up.
        evaluations = evaluation_steps(self.config)
        while True:
            self.stop.check()
            if self.step in evaluations:
                self.evaluate()
            if self.step == self.config.steps:
                break
            self.advance()
            if self.step % self.config.checkpoint.every == 0 or self.step == self.config.steps:
                self.save()
        self.save_model()
        sums = runs.model_sums(self.run)
        self.write("end", step=self.step, tokens=self.tokens, seconds=self.seconds, model=sums)
        self.metrics.sync()

    def advance(self) -> None:
        """One step: the next batch, its gradients, the update, one line of metrics."""
        began = time.perf_counter()
        scale = factor(self.config.schedule, self.step + 1, self.config.steps)
        optim.set_learning_rate(self.optimizers, scale)
        measured = self.backward(self.batches[self.step])
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        seconds = time.perf_counter() - began
        self.seconds += seconds
        rate = self.config.tokens_per_step / seconds
        self.write(
            "step",
            step=self.step,
            tokens=self.tokens,
            **measured._asdict(),
            learning_rate=scale * self.config.optimizer.matrices.learning_rate,
            tokens_per_second=rate,
            seconds=self.seconds,
        )
        left = self.seconds / self.step * (self.config.steps - self.step)
        self.progress.update(self.step, self.config.steps, measured.nll, rate, left)

    def backward(self, batch: Batch) -> Measured:
        """Accumulate the gradients of a batch, clip them, and refuse to go on with numbers that are not finite."""
        config = self.config
        total = torch.zeros(2, device=self.device)
        for part in micro_batches(batch, config.accumulation, self.device):
            both = torch.stack(losses(self.model, part, config.z_loss, config.precision)) / config.accumulation
            both.sum().backward()
            total += both.detach()
        norm = clip_grad_norm_(self.parameters, config.clip or math.inf)
        nll, z_loss = total.tolist()
        values = Measured(nll, z_loss, norm.item())
        if not all(map(math.isfinite, values)):
            found = ", ".join(f"{name} is {value}" for name, value in values._asdict().items())
            raise self.diverged(self.step + 1, found)
        return values

    def diverged(self, step: int, found: str) -> RunError:
        good = f"the last good checkpoint is {self.saved}" if self.saved else "there is no checkpoint yet"
        advice = "lower the learning rate or lengthen its warm-up"
        return RunError(f"{self.run}: step {step}: {found}; stopped without updating; {good}; {advice}")

    def evaluate(self) -> None:
        """Evaluate every held-out part, then write all events at once."""
        found = {
            name: evaluate(self.model, part, self.config, self.stop)
            for name, part in self.data.parts.items()
            if name != "train"
        }
        for name, evaluation in found.items():
            if not math.isfinite(evaluation.nll):
                raise self.diverged(self.step, f"the NLL on {name} is {evaluation.nll}")
        for name, evaluation in found.items():
            self.write("evaluation", step=self.step, tokens=self.tokens, held_out=name, **evaluation._asdict())
            losses = f"{evaluation.nll:.4f} nats a token, {evaluation.bits_per_byte:.4f} bits a byte"
            self.progress.message(f"step {self.step}: {name} {losses}")

    def write(self, event: str, **fields: Any) -> None:
        self.metrics.write(event, **fields)
        self.trackers.write(event, fields)

    @property
    def tokens(self) -> int:
        return self.step * self.config.tokens_per_step

    def save(self) -> None:
        """Save a checkpoint of this step, once."""
        if self.saved == checkpoint.path(self.run, self.step):
            return
        self.metrics.sync()
        point = Point(self.step, self.tokens, self.seconds, digest(self.config), self.data.digest)
        self.saved = checkpoint.save(self.run, point, self.model, self.optimizers, self.config.checkpoint.keep)

    def save_model(self) -> None:
        description = json.dumps(self.model.config.model_dump(mode="json"), indent=2)
        files = {"model.safetensors": packed(weights(self.model)), "config.json": description.encode() + b"\n"}
        runs.write_directory(self.run / runs.MODEL, files)
