"""The demo: a small study that ships with the package, and the proof that its runs learned something."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from safetensors.numpy import load_file  # pyright: ignore[reportUnknownVariableType]  (a bare PathLike in its signature)

from depthroute import config, runs
from depthroute.data import Dataset, build, evaluation_batches
from depthroute.errors import RunError
from depthroute.study.plan import Planned, Study, overlay

QUICK = {"model": {"layers": 4}, "batch": 4, "tokens": 40960, "evaluation": {"tokens": 16384}}
"""What `--quick` changes in the base: 4 layers, and 80 steps of half as many tokens."""
MARGIN = 0.25
"""Nats a token that a run must lie below the unigram entropy to count as having learned from context."""


def demo_text(quick: bool) -> str:
    """The demo's study as YAML."""
    text = files("depthroute.study").joinpath("demo.yaml").read_text(encoding="utf-8")
    if not quick:
        return text
    raw = config.parse_yaml(text, "demo.yaml")
    return yaml.safe_dump({**raw, "base": overlay(raw["base"], QUICK)}, sort_keys=False)


def demo_study(text: str) -> Study:
    return Study.parse(config.parse_yaml(text, "demo.yaml"))


def check_learned(results: Mapping[str, Any], plan: Sequence[Planned], directory: Path, data_root: Path) -> list[str]:
    """Lines that state the proof. RunError if a run does no better than word frequencies, or a query never moved."""
    entropy = unigram_entropy(validation_tokens(plan[0].config, data_root))
    worst = max(results["runs"], key=lambda entry: entry["held_out"]["validation"]["nll"])
    loss = worst["held_out"]["validation"]["nll"]
    if loss > entropy - MARGIN:
        raise RunError(
            f"{worst['directory']}: its NLL of {loss:.3f} is not {MARGIN} below {entropy:.3f}, what token frequencies "
            "alone give: it learned nothing from context"
        )
    norm, query = min(
        (norm, f"{name} of {run.name}") for run in plan for name, norm in query_norms(run.directory(directory)).items()
    )
    if norm == 0.0:
        raise RunError(f"{directory}: {query} is still zero, so a route never learned")
    return [
        f"learned: the worst run has {loss:.3f} nats a token; token frequencies alone would give {entropy:.3f}",
        f"routes moved: every query began at zero; the smallest norm now is {norm:.3f} ({query})",
    ]


def validation_tokens(run: config.Config, data_root: Path) -> NDArray[np.int64]:
    """The tokens that the run's validation NLL is about."""
    part = Dataset.open(build(run.data, data_root)).parts["validation"]
    batches = evaluation_batches(part, length=run.length, batch=run.batch, tokens=run.evaluation.tokens)
    return np.concatenate([batch.targets.ravel() for batch in batches])


def unigram_entropy(tokens: NDArray[np.int64]) -> float:
    """Nats a token of the best guess that ignores context: the entropy of these tokens' own frequencies."""
    _, counts = np.unique(tokens, return_counts=True)
    share = counts / counts.sum()
    return float(-(share * np.log(share)).sum())


def query_norms(run: Path) -> dict[str, float]:
    """The norm of every query of a run's final model, by parameter name; empty for a model without reads."""
    tensors = load_file(run / runs.MODEL / "model.safetensors")
    return {
        name: float(np.linalg.norm(value))
        for name, value in tensors.items()
        if name.rpartition(".")[2].startswith("query")
    }
