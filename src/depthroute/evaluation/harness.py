"""A trained model as lm-evaluation-harness sees it, and the tasks that are asked of it.

The harness brings the prompts, the metrics and their standard errors; here is what it asks of a model: the likelihood
of a continuation, that of a whole text, and greedy text up to a stop. A context is not preceded by an end of text,
unless it is empty; of one that is longer than a window the last tokens are kept, and it is counted.
"""

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast, final
from unittest.mock import patch

import torch

from depthroute.errors import ConfigError, RunError
from depthroute.evaluation.evaluator import Evaluator, Progress
from depthroute.evaluation.score import Scorer, Window
from depthroute.evaluation.trained import Trained
from depthroute.study.table import columns

try:
    from lm_eval import evaluator as harness  # pyright: ignore[reportMissingImports]
    from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingImports]
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]
except ImportError:
    raise ConfigError("--tasks needs lm-evaluation-harness: pip install 'depthroute[eval]'") from None

NEW_TOKENS = 256
"""At most so many are generated where a task names no number, as the harness's own models do."""


@final
class HarnessModel(TemplateLM):
    """Answers the harness's requests. `truncated` counts contexts of which the beginning was cut off."""

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        self.scorer, self.tokens = trained.scorer, trained.tokenizer
        self.truncated = 0

    @property
    def eot_token_id(self) -> int:
        return self.scorer.end

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: object) -> list[int]:
        return self.tokens.encode(string)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of each text, read as `eval --text` reads a document."""
        return [-nats for nats in self.scorer.nats(self.tokens.encode(request.args[0]) for request in requests)]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], **options: object
    ) -> list[tuple[float, bool]]:
        """Of each continuation after its context: its log-likelihood, and whether greedy text would be the same."""
        windows = [self.window(number, *ids) for number, (_, *ids) in enumerate(requests)]
        answers: list[tuple[float, bool]] = []
        for scores, (_, _, continuation) in zip(self.scorer.score(windows), requests, strict=True):
            last = len(continuation)
            answers.append((-float(scores.nll[-last:].sum()), bool(scores.likeliest[-last:].all())))
        return answers

    def window(self, owner: int, context: list[int], continuation: list[int]) -> Window:
        if not 1 <= len(continuation) <= self.scorer.length:
            raise RunError(
                f"a task asks for a continuation of {len(continuation)} tokens, in windows of {self.scorer.length}"
            )
        whole = [*context, *continuation]
        kept = whole[-self.scorer.length - 1 :]
        self.truncated += len(kept) < len(whole)
        return Window(owner, kept[:-1], kept[1:], opens=kept[0] == self.scorer.end)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        return [self.generate(*request.args) for request in requests]

    def generate(self, context: str, asked: dict[str, Any]) -> str:
        """Greedy text after the context, up to a stop, the end of text or the number of tokens that the task names."""
        if asked.get("do_sample") or asked.get("temperature", 0):
            raise RunError("a task asks for sampled text; only greedy text is generated here")
        until = asked.get("until") or []
        stops = [until] if isinstance(until, str) else until
        most = asked.get("max_gen_toks") or asked.get("max_new_tokens") or NEW_TOKENS
        prompt = self.tokens.encode(context) or [self.scorer.end]
        self.truncated += len(prompt) > self.scorer.length

        def stopped(ids: Sequence[int]) -> bool:
            text = self.tokens.decode(ids)
            return any(stop in text for stop in stops)

        text = self.tokens.decode(greedy(self.scorer, prompt, most, stopped))
        return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


@torch.no_grad()
def greedy(scorer: Scorer, prompt: Sequence[int], most: int, stopped: Callable[[Sequence[int]], bool]) -> list[int]:
    """The likeliest next ids, one after the other. The whole window goes through the model for each of them.

    Nothing else here knows how ids are generated: a model that keeps its keys and values takes this function's place.
    """
    device = next(scorer.model.parameters()).device
    ids: list[int] = []
    while len(ids) < most and not stopped(ids):
        window = torch.tensor([[*prompt, *ids][-scorer.length :]], device=device)
        documents = torch.ones_like(window) if scorer.model.config.document_mask else None
        likeliest = int(scorer.model(window, documents)[0, -1].argmax())
        if likeliest == scorer.end:
            break
        ids.append(likeliest)
    return ids


@final
class Tasks(Evaluator):
    """Tasks of the harness by name, or by the YAML file that describes one."""

    def __init__(self, names: Sequence[str], shots: int | None, limit: int | None) -> None:
        self.names, self.shots, self.limit = [name.strip() for name in names], shots, limit
        # Its own tasks are thousands of files, which take seconds to list.
        self.manager = TaskManager(include_defaults=not all(map(is_file, self.names)))
        for name in self.names:
            if is_file(name):
                check_file(self.manager, name)
            elif name not in self.manager.all_tasks:
                hint = did_you_mean(name, self.manager.all_tasks)
                raise ConfigError(f"--tasks {name}: lm-evaluation-harness has no such task{hint}")

    def evaluate(self, trained: Trained, progress: Progress) -> dict[str, Any]:
        model = HarnessModel(trained)
        progress(", ".join(self.names), 0)
        # What machine and folder this is, our own records tell. The harness would ask programs anew for every run, more
        # than a second each time, and git answers on the terminal where there is no repository.
        with patch.multiple(harness, add_env_info=nothing, get_git_commit_hash=nothing):
            answer = harness.simple_evaluate(
                model,
                tasks=[str(Path(name).absolute()) if is_file(name) else name for name in self.names],
                num_fewshot=self.shots,
                limit=self.limit,
                task_manager=self.manager,
                log_samples=False,
            )
        assert answer is not None  # only other ranks of a distributed evaluation get none
        results: dict[str, dict[str, Any]] = cast(Any, answer)["results"]
        return {"tasks": {name: numbers(entry) for name, entry in results.items()}, "truncated": model.truncated}

    def table(self, found: dict[str, Any]) -> list[str]:
        rows = [["task", "metric", "value", "standard error"]]
        for task, entry in found["tasks"].items():
            for metric, value in entry.items():
                rows.append([task, metric, f"{value['value']:.4f}", error_words(value["standard_error"])])
        lines = columns(rows)
        if found["truncated"]:
            lines += ["", f"{found['truncated']} contexts were longer than a window, and were cut"]
        return lines

    def metrics(self, found: dict[str, Any]) -> dict[str, float]:
        return {
            f"{task}, {metric}": value["value"]
            for task, entry in found["tasks"].items()
            for metric, value in entry.items()
        }


def nothing(*_: object) -> None: ...


def is_file(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def check_file(manager: Any, name: str) -> None:
    """ConfigError if a YAML file is not there, or no task that the harness can load with its documents."""
    if not Path(name).is_file():
        raise ConfigError(f"--tasks {name}: no such file")
    try:
        manager.load([str(Path(name).absolute())])
    except Exception as error:  # the harness and its libraries raise nothing more precise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"--tasks {name}: lm-evaluation-harness cannot load it: {reason}") from error


def numbers(entry: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """The metrics of one task with their standard errors, from the harness's keys `acc,none` and `acc_stderr,none`."""
    found: dict[str, dict[str, float | None]] = {}
    for key, value in entry.items():
        name, comma, filtered = key.partition(",")
        if not comma or name.endswith("_stderr") or not isinstance(value, int | float):
            continue
        error = entry.get(f"{name}_stderr,{filtered}")
        named = name if filtered == "none" else f"{name} ({filtered})"
        found[named] = {"value": float(value), "standard_error": error if isinstance(error, float) else None}
    return found


def error_words(error: float | None) -> str:
    return "-" if error is None else f"{error:.4f}"


def did_you_mean(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean '{close[0]}'?" if close else "; name one, or the YAML file of your own"
