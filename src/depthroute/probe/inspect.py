"""Everything that is measured of a trained run, as plain data, and its files: JSON and Parquet."""

import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from depthroute import runs
from depthroute.errors import RunError
from depthroute.model.cost import cost
from depthroute.probe.gradients import gradient_norms
from depthroute.probe.likelihood import add, token_nll
from depthroute.probe.subject import Subject, Text
from depthroute.probe.trace import Tracer

FORMAT, NUMBERS = 1, "inspect.json"
Progress = Callable[[str, int, int], None]


def inspect(subject: Subject, text: Text, progress: Progress | None = None) -> dict[str, Any]:
    """Trace the run's model on the text, and take the norms of its gradients there."""
    model, device = subject.model, subject.model.embed_tokens.weight.device
    sums, counts = np.zeros(text.part.documents), np.zeros(text.part.documents, np.int64)

    def counted(stage: str, done: int) -> None:
        if progress is not None:
            progress(f"{subject.run}: {stage}, tokens", done, text.tokens)

    with Tracer(model, text.part.documents) as tracer:
        for batch in text.batches(device):
            logits = tracer.add(batch.tokens, batch.documents)
            add(sums, counts, token_nll(logits, batch.targets), batch.documents)
            counted("depth weights", int(counts.sum()))
        traced = tracer.finish()
    gradients = gradient_norms(model, text.batches(device), lambda done: counted("gradients", done))
    counting = cost(model.config, subject.config.length, stages=1).plain()
    return {
        "run": str(subject.run),
        "residual": model.config.residual.model_dump(mode="json"),
        "layers": model.config.layers,
        "seed": subject.config.seed,
        "text": text.name,
        "nll": float(sums.sum() / counts.sum()),
        "final": {name: event["nll"] for name, event in runs.final_evaluation(subject.run).items()},
        "parameters": counting["parameters"]["total"],
        "added_percent": counting["added_percent"],
        "added_percent_of_all": counting["added_percent_of_all"],
        "summary": traced.summary,
        "tables": {**traced.tables, "gradients": gradients},
    }


def check_parquet() -> None:
    """RunError where Parquet cannot be written, before hours of work."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise RunError(
            "writing Parquet needs pyarrow: pip install 'depthroute[parquet]', or leave it out with --no-parquet"
        ) from None


def check_place(directory: Path) -> None:
    """RunError where the directory cannot be written, before hours of work. Makes nothing."""
    nearest = next(place for place in (directory, *directory.parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise RunError(f"{directory}: cannot be written; name another place with --out")


def write(groups: Mapping[str, Sequence[Mapping[str, Any]]], directory: Path, parquet: bool) -> dict[str, Any]:
    """Write inspect.json and, if asked for, a Parquet file a table into the directory. Returns the JSON's content.

    Parquet files that lie there from before and are not written anew are removed.

    `groups` are inspected runs by label: an arm's seeds, or a run alone.
    """
    content = {"format": FORMAT, "groups": [{"label": label, "runs": list(found)} for label, found in groups.items()]}
    directory.mkdir(parents=True, exist_ok=True)
    runs.write_atomic(directory / NUMBERS, json.dumps(content, indent=1, allow_nan=False).encode() + b"\n")
    inspected = [(label, run) for label, found in groups.items() for run in found]
    for name in inspected[0][1]["tables"]:
        rows = [
            {"group": label, "run": run["run"], "seed": run["seed"], **row}
            for label, run in inspected
            for row in run["tables"][name]
        ]
        path = directory / f"{name}.parquet"
        if parquet and rows:
            runs.write_atomic(path, as_parquet(rows))
        else:  # one of an earlier text would pass for this one's
            path.unlink(missing_ok=True)
    return content


def as_parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file.getvalue()
