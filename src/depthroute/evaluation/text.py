"""NLL, bits a byte and perplexity of texts, each with an interval over documents.

    NLL = sum_i n_i / sum_i t_i        bits a byte = sum_i n_i / (ln 2 sum_i b_i)        perplexity = exp(NLL)

over the documents `i` of a domain, with `n_i` nats, `t_i` tokens, `b_i` bytes of UTF-8. The interval is Student's, over
documents, of the ratio's linearisation: documents are what is drawn, and they differ in length as well as in NLL. That
of the perplexity is the exponential of the NLL's. A domain of one document has no interval.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from depthroute.data import FilesCorpus, Tokenizer
from depthroute.data.files import documents, find, sha256
from depthroute.errors import ConfigError, DataError
from depthroute.evaluation.evaluator import Evaluator, Progress
from depthroute.evaluation.score import Scorer
from depthroute.evaluation.trained import Trained
from depthroute.study.statistics import t_interval
from depthroute.study.table import columns

LEVEL = 0.95
LARGEST = 700.0
"""Nats whose exponential is still a float."""


class Domain(NamedTuple):
    """Texts under one name. A document is a row of JSONL or Parquet; of text, a file where there are several, and in a
    single file a run of whole lines of about 8 KiB."""

    name: str
    corpus: FilesCorpus


class Estimate(NamedTuple):
    """A number over all documents and its interval; None where one document tells nothing of others."""

    value: float
    low: float | None
    high: float | None


def domains(words: Sequence[str], field: str) -> list[Domain]:
    """The domains that words such as `a.txt`, `wiki=wiki.jsonl` or `books=books/*.txt` ask for, in their order.

    Words with one name are one domain; a file without a name is a domain by itself. ConfigError for a file given twice,
    DataError for one that is not there.
    """
    files: dict[str, list[str]] = {}
    for word in words:
        name, equals, pattern = word.partition("=")
        if find_is_file(word) or not equals:
            name = pattern = word
        if not name or not pattern:
            raise ConfigError(f"--text {word}: write FILE or NAME=FILE")
        if pattern in files.setdefault(name, []):
            raise ConfigError(f"--text {word}: is given twice")
        files[name].append(pattern)
    return [Domain(name, corpus(patterns, field)) for name, patterns in files.items()]


def find_is_file(word: str) -> bool:
    """Whether a word with `=` in it is the name of a file."""
    try:
        return bool(find(FilesCorpus(files=[word])))
    except DataError:
        return False


def corpus(patterns: list[str], field: str) -> FilesCorpus:
    one = len(find(FilesCorpus(files=patterns))) == 1
    return FilesCorpus(files=patterns, field=field, split="document" if one else "file", validation=1)


@final
class Texts(Evaluator):
    """The texts of these domains."""

    def __init__(self, domains: Sequence[Domain]) -> None:
        self.domains = domains

    def evaluate(self, trained: Trained, progress: Progress) -> dict[str, Any]:
        found = [measure(trained.scorer, trained.tokenizer, domain, progress) for domain in self.domains]
        return {"level": LEVEL, "domains": found}

    def table(self, found: dict[str, Any]) -> list[str]:
        rows = [["domain", "documents", "tokens", *(cell for name in UNITS.values() for cell in (name, "interval"))]]
        for domain in found["domains"]:
            row = [domain["domain"], f"{domain['documents']:,}", f"{domain['tokens']:,}"]
            for key in UNITS:
                value, low, high = domain[key].values()
                row += [f"{value:.4f}", "-" if low is None else f"[{low:.4f}, {shown(high)}]"]
            rows.append(row)
        lines = [*columns(rows), "", f"{100 * LEVEL:.0f} % t intervals over documents; one document has none"]
        return lines + [f"{d['domain']}: {d['empty']} empty documents left out" for d in found["domains"] if d["empty"]]

    def metrics(self, found: dict[str, Any]) -> dict[str, float]:
        return {
            f"{domain['domain']}, {unit}": domain[key]["value"]
            for domain in found["domains"]
            for key, unit in UNITS.items()
        }


UNITS = {"nll": "nats a token", "bits_per_byte": "bits a byte", "perplexity": "perplexity"}


def shown(end: float | None) -> str:
    return "..." if end is None else f"{end:.4f}"


def measure(scorer: Scorer, tokenizer: Tokenizer, domain: Domain, progress: Progress) -> dict[str, Any]:
    """One domain as plain data: what was read, how much of it, and the three estimates. DataError if it is empty."""
    counts: list[tuple[int, int]] = []

    def ids_of_documents() -> Iterator[list[int]]:
        done = 0
        for document in documents(domain.corpus, only_validation=False):
            text = b"".join(document.chunks)
            ids = tokenizer.encode(text.decode())
            counts.append((len(ids), len(text)))
            yield ids
            done += len(text)
            progress(domain.name, done)

    all_nats = scorer.nats(ids_of_documents())
    kept = np.array([(n, t, b) for n, (t, b) in zip(all_nats, counts, strict=True) if t], np.float64)
    if not len(kept):
        raise DataError(f"{domain.name}: has no document that holds text ({len(counts)} empty ones)")
    nats, tokens, sizes = kept.T
    nll = ratio(nats, tokens)
    return {
        "domain": domain.name,
        "files": [{"name": file.name, "sha256": sha256(file.path)} for file in find(domain.corpus)],
        "documents": len(kept),
        "empty": len(counts) - len(kept),
        "tokens": int(tokens.sum()),
        "bytes": int(sizes.sum()),
        "nll": nll._asdict(),
        "bits_per_byte": ratio(nats / math.log(2), sizes)._asdict(),
        "perplexity": exponential(nll)._asdict(),
    }


def ratio(numerators: np.ndarray, denominators: np.ndarray) -> Estimate:
    """sum n / sum d over documents, with Student's interval of `value + (n_i - value d_i) / mean d`.

    These numbers, one a document, have the ratio as their mean, and their spread is that of the ratio to first order.
    """
    value = float(numerators.sum() / denominators.sum())
    if len(numerators) < 2:
        return Estimate(value, None, None)
    low, high = t_interval(list(value + (numerators - value * denominators) / denominators.mean()), LEVEL)
    return Estimate(value, low, high)


def exponential(nll: Estimate) -> Estimate:
    """Without a bound that no float could hold."""
    low, high = (None if end is None or end > LARGEST else math.exp(end) for end in (nll.low, nll.high))
    return Estimate(math.exp(nll.value), low, high)
