"""Study directories with run directories of chosen NLLs in them, written without training anything."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from depthroute import config, runs
from depthroute.study.cells import Planned
from depthroute.study.results import collect, save
from depthroute.study.seal import sealed

MILESTONES = (0, 4096, 8192, 16384, 32768)
VERSIONS = {"python": "3.11.2", "torch": "2.13.0", "numpy": "2.4.0", "depthroute": "0.1.0"}
FULL = {"preset": "attnres-block", "blocks": 2}
RESIDUALS = {"prenorm": "prenorm", "block": FULL, "rd": {"preset": "rd", "blocks": 2}}

Final = Callable[[Planned, str], float]


def run_config(arm: str, seed: int) -> config.Config:
    """A tiny model; the residual of an arm is found by the beginning of its name, and is PreNorm's for others."""
    residual = next((found for start, found in RESIDUALS.items() if arm.startswith(start)), "prenorm")
    return config.from_dict(
        {
            "data": {"corpus": {"files": ["text.txt"], "validation": 0.2}, "tokenizer": "byte"},
            "model": {"width": 32, "layers": 4, "heads": 2, "hidden": 48, "residual": residual},
            "batch": 8,
            "length": 64,
            "tokens": MILESTONES[-1],
            "schedule": {"warmup": 3},
            "evaluation": {"milestones": list(MILESTONES)},
            "seed": seed,
        }
    )


def plan_of(
    arms: Sequence[str],
    seeds: Sequence[int],
    cross: Mapping[str, Sequence[str]] | None = None,
    replicates: Sequence[tuple[str, int]] = (),
) -> list[Planned]:
    levels = [dict(zip(cross or {}, chosen, strict=True)) for chosen in product(*(cross or {}).values())]
    cells = [Planned(arm, seed, run_config(arm, seed), at) for seed in seeds for arm in arms for at in levels]
    again = [Planned(arm, seed, run_config(arm, seed), at, 1) for arm, seed in replicates for at in levels]
    return cells + again


def prereg_of(
    plan: Sequence[Planned],
    contrasts: Sequence[Mapping[str, Any]],
    cross: Mapping[str, Sequence[str]] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    arms, seeds = (list(dict.fromkeys(getattr(cell, key) for cell in plan)) for key in ("arm", "seed"))
    plan_words: dict[str, Any] = {
        "format": 1,
        "date": "2026-11-30 12:00",
        "question": "Does a role-decoupled read beat the shared one?",
        "arms": arms,
        "cross": {factor: list(levels) for factor, levels in (cross or {}).items()},
        "seeds": seeds,
        "baseline": arms[0],
        "tokens": MILESTONES[-1],
        "milestones": list(MILESTONES),
        "held_out": ["validation"],
        "contrasts": [{"primary": False, "margin": None, "held_out": "validation", "at": {}, **c} for c in contrasts],
        "metric": "NLL, nats a token",
        "level": 0.05,
        "decision_rule": "A difference counts where its t interval excludes 0, for primary contrasts after Holm.",
        "config_digests": {cell.cell: "c0" * 32 for cell in plan},
        "data_digest": "da" * 32,
        "tokenizer_digest": "70" * 32,
        "versions": VERSIONS,
        "impl": "reference",
        "power": {"words": ["With an SD of 0.01, 5 pairs detect a difference of 0.0166."]},
        "tuning": None,
        "replicates": [
            {"arm": cell.arm, "seed": cell.seed, "at": dict(cell.levels)} for cell in plan if cell.replicate
        ],
        "study": {},
        "amendments": [],
        **changes,
    }
    return sealed(plan_words)


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a sealed file and seal it again."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(sealed(content)))


def write_run(
    cell: Planned, study: Path, nll: Callable[[str], float], held_out: Sequence[str] = ("validation",), **manifest: Any
) -> Path:
    """A finished run whose NLL falls by a power of its tokens to `nll(held_out)`."""
    run = cell.directory(study)
    run.mkdir(parents=True)
    (run / runs.CONFIG).write_text(config.dump(cell.config))
    described = {
        "config_digest": config.digest(cell.config),
        "data_digest": "da" * 32,
        "tokenizer_digest": "70" * 32,
        "vocab": 257,
        "parameters": 40_000,
        "impl": "reference",
        "device": "cpu",
        "precision": "fp32",
        "deterministic": True,
        "threads": 1,
        "versions": VERSIONS,
        **manifest,
    }
    (run / runs.MANIFEST).write_text(json.dumps(described))
    (run / runs.METRICS).write_bytes(b"".join(map(runs.encode, events(cell, nll, held_out))))
    runs.write_directory(run / runs.MODEL, dict.fromkeys(runs.MODEL_FILES, b""))
    return run


def events(cell: Planned, nll: Callable[[str], float], held_out: Sequence[str]) -> list[dict[str, Any]]:
    """Steps of a second each, a tenth more for every letter of the arm's name."""
    pace, batch = 1 + len(cell.arm) / 10, cell.config.tokens_per_step
    found: list[dict[str, Any]] = []
    for step in range(cell.config.steps + 1):
        at = {"step": step, "tokens": step * batch}
        if step:
            found.append({"event": "step", **at, "nll": 3.0, "tokens_per_second": batch / pace, "seconds": pace * step})
        if step * batch in MILESTONES:
            excess = 2.0 * ((step + 1) ** -0.5 - (cell.config.steps + 1) ** -0.5)
            for name in held_out:
                value = nll(name) + excess
                judged = {"held_out": name, "nll": value, "bits_per_byte": value / 2.5, "tokens_evaluated": 2048}
                found.append({"event": "evaluation", **at, **judged})
    model = dict.fromkeys(runs.MODEL_FILES, hashlib.sha256(b"").hexdigest())
    return [*found, {"event": "end", **at, "seconds": pace * step, "model": model}]


def write_study(
    study: Path,
    plan: Sequence[Planned],
    prereg: Mapping[str, Any],
    final: Final,
    held_out: Sequence[str] = ("validation",),
    left_out: Sequence[tuple[str, int]] = (),
) -> dict[str, Any]:
    """All runs but those `left_out` (arm and seed), prereg.json and results.json; returns the results."""
    study.mkdir(parents=True, exist_ok=True)
    for cell in plan:
        if (cell.arm, cell.seed) not in left_out:
            write_run(cell, study, lambda name, cell=cell: final(cell, name), held_out)
    (study / "prereg.json").write_text(json.dumps(prereg))
    results = collect(prereg, plan, study)
    save(results, study)
    return results
