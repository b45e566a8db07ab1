"""What every way of evaluating a model answers: texts in `text`, tasks in `harness`."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from depthroute.evaluation.trained import Trained

Progress = Callable[[str, int], None]
"""Told what is being evaluated, and how many bytes of it are done."""


class Evaluator(ABC):
    @abstractmethod
    def evaluate(self, trained: Trained, progress: Progress) -> dict[str, Any]:
        """Everything found of one model, as plain data."""

    @abstractmethod
    def table(self, found: dict[str, Any]) -> list[str]:
        """What `evaluate` found, as lines for a terminal."""

    @abstractmethod
    def metrics(self, found: dict[str, Any]) -> dict[str, float]:
        """The numbers by which runs of a study are compared, by the words that name them."""
