"""The negative log-likelihood of given tokens, in batches of padded windows.

A document is scored as in training: after an end-of-text token, in windows of the length that the model was trained
on. Each window starts with the token before its first target, so that every token of the document is a target once,
the end of text that follows it is none, and nothing is seen of an earlier window but that one token.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, final

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from depthroute.model.transformer import Transformer


class Window(NamedTuple):
    """Input ids and as many next ids. `opens` says that the first input is the end of the document before."""

    owner: int
    tokens: Sequence[int]
    targets: Sequence[int]
    opens: bool


class Scores(NamedTuple):
    """Of one window: for each target its NLL in nats, and whether it was the likeliest id."""

    owner: int
    nll: np.ndarray
    likeliest: np.ndarray


@final
class Scorer:
    """Scores windows with a model. `length` is the longest window, `batch` how many go through the model at once."""

    def __init__(self, model: Transformer, end: int, length: int, batch: int) -> None:
        self.model, self.end, self.length, self.batch = model, end, length, batch

    def nats(self, documents: Iterable[Sequence[int]]) -> list[float]:
        """The NLL of each document, given as its ids, in nats; 0 for an empty one. Documents are taken as needed."""
        totals: list[float] = []

        def windows() -> Iterator[Window]:
            for number, ids in enumerate(documents):
                totals.append(0.0)
                yield from self.windows(number, ids)

        for scores in self.score(windows()):
            totals[scores.owner] += float(scores.nll.sum())
        return totals

    def windows(self, owner: int, ids: Sequence[int]) -> Iterator[Window]:
        """The windows of one document; none of an empty one."""
        stream = [self.end, *ids]
        for start in range(0, len(ids), self.length):
            part = stream[start : start + self.length + 1]
            yield Window(owner, part[:-1], part[1:], start == 0)

    def score(self, windows: Iterable[Window]) -> Iterator[Scores]:
        """The scores of each window, in order. Windows are taken as needed, `batch` at a time."""
        waiting = iter(windows)
        while group := list(islice(waiting, self.batch)):
            yield from self.score_together(group)

    @torch.no_grad()
    def score_together(self, group: Sequence[Window]) -> list[Scores]:
        """The scores of windows that go through the model at once."""
        device = next(self.model.parameters()).device
        lengths = [len(window.tokens) for window in group]
        # What is padded lies behind every target, where causal attention does not look.
        tokens, targets = (np.full((len(group), max(lengths)), self.end, np.int64) for _ in range(2))
        documents = np.ones_like(tokens)
        for row, window in enumerate(group):
            tokens[row, : lengths[row]], targets[row, : lengths[row]] = window.tokens, window.targets
            documents[row, 0] -= window.opens
        inputs, wanted, of = (torch.from_numpy(array).to(device) for array in (tokens, targets, documents))
        logits = self.model(inputs, of if self.model.config.document_mask else None).float()
        nll = cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none").view(wanted.shape)
        found = nll.double().cpu().numpy(), (logits.argmax(-1) == wanted).cpu().numpy()
        return [
            Scores(window.owner, *(array[row, :length] for array in found))
            for row, (window, length) in enumerate(zip(group, lengths, strict=True))
        ]
