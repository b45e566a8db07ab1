"""Trackers: services that show a run's metrics while it trains. Off unless the configuration names them in `track`.

tensorboard   event files in RUN/tensorboard
wandb         Weights & Biases, under RUN/wandb; `WANDB_MODE=offline` sends nothing
trackio       Hugging Face's local tracker, in its own directory (`TRACKIO_DIR`)

metrics.jsonl stays the source of truth. A tracker that is not installed, or fails, is warned of in one line and left;
training goes on, to the same bits. A run that is resumed is a further run of wandb and trackio, in the same group.
"""

import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, final

from depthroute.config import Config

log = logging.getLogger(__name__)
PROJECT = "depthroute"


class Tracker(ABC):
    """Made with a run's directory, its configuration as plain data, and the step that it goes on from."""

    @abstractmethod
    def __init__(self, run: Path, config: dict[str, Any], step: int) -> None: ...

    @abstractmethod
    def write(self, values: Mapping[str, float], step: int) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


@final
class Tensorboard(Tracker):
    def __init__(self, run: Path, config: dict[str, Any], step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What a killed run wrote after its checkpoint comes again.
        self.writer = SummaryWriter(run / "tensorboard", purge_step=step + 1 if step else None)

    def write(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


@final
class Wandb(Tracker):
    def __init__(self, run: Path, config: dict[str, Any], step: int) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        settings = wandb.Settings(console="off", silent=True)
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self.run = wandb.init(
            project=project, group=str(run), name=name(run, step), dir=run, config=config, settings=settings
        )

    def write(self, values: Mapping[str, float], step: int) -> None:
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        self.run.finish()


@final
class Trackio(Tracker):
    def __init__(self, run: Path, config: dict[str, Any], step: int) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        self.run = trackio.init(project=PROJECT, group=str(run), name=name(run, step), config=config, embed=False)

    def write(self, values: Mapping[str, float], step: int) -> None:
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        self.run.finish()


def name(run: Path, step: int) -> str:
    return f"{run} from step {step}" if step else str(run)


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": Tensorboard, "wandb": Wandb, "trackio": Trackio}


@final
class Trackers:
    """All trackers of a run. No failure of theirs leaves here but as a warning."""

    def __init__(self, config: Config, run: Path, step: int, say: Callable[[str], None]) -> None:
        self._open: dict[str, Tracker] = {}
        plain = config.model_dump(mode="json")
        for word in dict.fromkeys(config.track):
            say(f"track: starting {word}")
            softly(word, lambda word=word: self._open.update({word: TRACKERS[word](run, plain, step)}))

    def write(self, event: str, fields: Mapping[str, Any]) -> None:
        """An event as `MetricsWriter.write` takes it; its numbers are shown by the step."""
        prefix = fields["held_out"] if event == "evaluation" else "train"
        values = {f"{prefix}/{key}": value for key, value in fields.items() if isinstance(value, float)}
        for word, tracker in list(self._open.items()):
            if not softly(word, lambda tracker=tracker: tracker.write(values, fields["step"])):
                del self._open[word]

    def close(self) -> None:
        for word, tracker in self._open.items():
            softly(word, tracker.close)


def softly(word: str, act: Callable[[], None]) -> bool:
    """Whether a tracker did what it was asked to; if not, one warning says why."""
    try:
        with redirect_stdout(sys.stderr):  # What they print is no output of ours.
            act()
    except ModuleNotFoundError:
        log.warning("track: %s is not installed, so it shows nothing: pip install 'depthroute[track]'", word)
    except Exception as error:  # whatever a service does must not end a run
        reason = " ".join(str(error).split()) or type(error).__name__
        log.warning("track: %s failed and shows nothing more of this run: %s", word, reason)
    else:
        return True
    return False
