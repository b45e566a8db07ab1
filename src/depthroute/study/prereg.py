"""prereg.json: what a study is going to do and how it will be judged, written down before its first run.

It holds the study itself, what follows from it, the data and the versions, and a digest over all of it. What differs
from it later is refused, or recorded as a dated amendment with its reason.
"""

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from depthroute import config
from depthroute.data import INDEX, Part, read_index
from depthroute.data.files import sha256
from depthroute.errors import ConfigError
from depthroute.model.transformer import Transformer
from depthroute.study import seal
from depthroute.study.cells import Planned
from depthroute.study.detect import power_statement
from depthroute.study.parity import check_tolerance
from depthroute.study.plan import Contrast, Study, contrasts, plan_runs
from depthroute.study.seal import PREREG, PREREG_FORMAT, Document, read_plan, sealed
from depthroute.study.tuning import SELECTION, tuning_runs
from depthroute.train.start import VERSIONS

METRIC = "NLL, nats a token"


def document(study: Study, data: Path) -> Document:
    """The plan of a study whose data lie built in `data`. ConfigError if an arm's model cannot be built."""
    index = read_index(data)
    check_unseen(study, data)
    cells = {run.cell: run for run in plan_runs(study) if run.seed == study.seeds[0] and not run.replicate}
    tried = tuning_runs(study)  # A point that is no configuration is found now.
    first = next(iter(cells.values())).config
    planned = contrasts(study)
    impls = {cell: built_impl(run, index.tokenizer.vocab) for cell, run in cells.items()}
    check_distinct(cells, impls)
    check_tolerance(study, impls, [*cells.values(), *tried])
    body: Document = {
        "format": PREREG_FORMAT,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "question": study.question,
        "arms": list(study.arms),
        "cross": {factor: list(levels) for factor, levels in study.cross.items()},
        "seeds": study.seeds,
        "baseline": study.reference,
        "tokens": _one_or_each({cell: run.config.tokens for cell, run in cells.items()}),
        "milestones": _one_or_each({cell: milestones(run.config) for cell, run in cells.items()}),
        "held_out": ["validation", *first.data.held_out],
        "contrasts": [asdict(contrast) for contrast in planned],
        "crossings": [crossing.model_dump(mode="json") for crossing in study.crossings],
        "metric": METRIC,
        "level": study.level,
        "decision_rule": decision_rule(planned, study.level, crossed=bool(study.crossings)),
        "config_digests": {cell: digest_without_seed(run.config) for cell, run in cells.items()},
        "data_digest": sha256(data / INDEX),
        "tokenizer_digest": index.tokenizer.digest,
        "versions": versions(),
        "impl": _one_or_each(impls),
        "parity": None if study.parity is None else study.parity.model_dump(mode="json"),
        "power": power_statement(study, planned),
        "tuning": _tuning(study),
        "replicates": [replicate.model_dump(mode="json") for replicate in study.replicates],
        "study": study.model_dump(mode="json", exclude={"workers"}),
        "amendments": [],
    }
    return sealed(body)


def check_unseen(study: Study, data: Path) -> None:
    """ConfigError if a document that values are chosen on is also one that a contrast or crossing is judged on."""
    if study.tuning is None:
        return
    split = study.tuning.held_out
    tuned_on = documents(data, split)
    judged = [("contrast", one.held_out) for one in contrasts(study)]
    judged += [("crossing", one.held_out) for one in study.crossings]
    for what, name in dict.fromkeys(judged):
        if shared := tuned_on & documents(data, name):
            raise ConfigError(
                f"tuning.held_out: {len(shared)} of the {len(tuned_on)} documents of '{split}' stand in '{name}' too, "
                f"on which a {what} is judged; tune on other text, as what was chosen on a text looks good there"
            )


def documents(data: Path, name: str) -> set[bytes]:
    """A digest of the tokens of every document of a part."""
    index = read_index(data)
    part = Part(data, name, index.parts[name], np.dtype(index.dtype))
    return {hashlib.sha256(part.read(*ends).tobytes()).digest() for ends in pairwise(part.offsets.tolist())}


def read(directory: Path) -> Document:
    """RunError if there is no plan, or it was edited."""
    return read_plan(directory)


def write(plan: Document, directory: Path) -> None:
    seal.write(directory / PREREG, plan)


def planned_study(plan: Mapping[str, Any]) -> Study:
    """The study that a plan holds."""
    return Study.parse(plan["study"], f"study in {PREREG}")


def decision_rule(planned: Sequence[Contrast], level: float, crossed: bool = False) -> str:
    primary = [contrast for contrast in planned if contrast.primary]
    margins = any(contrast.margin is not None for contrast in planned)
    rule = (
        "Differences are taken at equal seeds. A primary contrast is called lower or higher if the "
        f"{100 - 100 * level:g} % t interval of its mean difference excludes 0"
    )
    if len(primary) > 1:
        rule += (
            f" and its two-sided t test, adjusted by Holm over the {len(primary)} primary contrasts, has p < {level:g}"
        )
    if margins:
        rule += (
            "; else equivalent, if it has a margin, its t interval does not exclude 0, and two one-sided t tests at "
            f"level {level:g} both put the mean difference inside the margin"
        )
    rule += "; else undecided."
    if margins:
        rule += (
            " Equivalence tests are not corrected for the number of contrasts: Holm's correction covers claims of a "
            "direction only."
        )
    if len(primary) < len(planned):
        rule += " Contrasts that are not primary are described, and called nothing but equivalent or identical."
    if crossed:
        rule += (
            " Crossings, at equal seeds each level of a factor minus its first in every arm, and that of an arm minus "
            "that of the baseline, are described in the same way."
        )
    return rule


def milestones(run: config.Config) -> list[int]:
    """Tokens at which a run is judged; its end is the last."""
    every = run.evaluation.every
    written = range(every, run.tokens + 1, every) if every else run.evaluation.milestones
    return sorted({*written, run.tokens})


def digest_without_seed(run: config.Config) -> str:
    plain = {key: value for key, value in config.deciding(run).items() if key != "seed"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def versions() -> dict[str, str]:
    """As a manifest has them."""
    return {"python": platform.python_version()} | {name: version(name) for name in VERSIONS}


def built_impl(run: Planned, vocab: int) -> str:
    """The implementation that the run's model resolves to. ConfigError if the model cannot be built."""
    given = run.config.model.vocab
    model = run.config.model if given is not None else run.config.model.model_copy(update={"vocab": vocab})
    try:
        with torch.device("meta"):
            return Transformer(model, run.config.impl).impl
    except ConfigError as error:
        raise ConfigError(f"arm '{run.cell}': {error}") from None


def check_distinct(cells: Mapping[str, Planned], impls: Mapping[str, str]) -> None:
    """ConfigError where two levels differ in nothing but the name of one implementation: `auto`, and what it is."""
    seen: dict[tuple[str, str], Planned] = {}
    for cell, run in cells.items():
        built = run.config.model_copy(update={"impl": impls[cell]})
        same = seen.setdefault((run.arm, digest_without_seed(built)), run)
        if same is not run:
            factor = next(factor for factor, level in run.levels.items() if same.levels[factor] != level)
            raise ConfigError(
                f"cross.{factor}: levels '{same.levels[factor]}' and '{run.levels[factor]}' are one and the same here, "
                f"as '{same.config.impl}' and '{run.config.impl}' both mean '{impls[cell]}'; leave one of them out"
            )


def _one_or_each(by_cell: Mapping[str, Any]) -> Any:
    """The value of all cells where they agree; else the value of each."""
    values = list(by_cell.values())
    return values[0] if all(value == values[0] for value in values) else dict(by_cell)


def _tuning(study: Study) -> Document | None:
    if study.tuning is None:
        return None
    return {
        "seeds": study.tuning.seeds,
        "tokens": study.tuning.tokens,
        "held_out": study.tuning.held_out,
        "grids": {arm: study.tuning.of(arm) for arm in study.arms},
        "selection": SELECTION,
    }
