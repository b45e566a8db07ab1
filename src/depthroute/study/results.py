"""From run directories to results.json and its table. Reads directories only; nothing here trains."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from depthroute import config, runs
from depthroute.errors import RunError
from depthroute.study.plan import Planned, Study
from depthroute.study.progress import last_step
from depthroute.study.statistics import paired, paired_differences

RESULTS = "results.json"
SHARED = ("data_digest", "tokenizer_digest")


def collect(study: Study, plan: Sequence[Planned], directory: Path) -> dict[str, Any]:
    """Everything that the finished runs say, and what is missing. RunError if they cannot be compared."""
    complete = [run for run in plan if runs.finished(run.directory(directory))]
    entries = [read_run(run, run.directory(directory)) for run in complete]
    check_pairing(entries)
    return {
        "question": study.question,
        "baseline": study.reference,
        "arms": list(study.arms),
        "seeds": study.seeds,
        "runs": entries,
        "differences": compare(study, entries),
        "missing": [missing(run, directory) for run in plan if run not in complete],
        "provenance": provenance(entries),
    }


def save(results: Mapping[str, Any], directory: Path) -> None:
    runs.write_atomic(directory / RESULTS, json.dumps(results, indent=2, allow_nan=False).encode() + b"\n")


def read_run(run: Planned, directory: Path) -> dict[str, Any]:
    """One finished run: its held-out NLL in nats a token and bits a byte, its speed, and what it was trained on."""
    described = runs.manifest(directory)
    if described["config_digest"] != config.digest(run.config):
        raise RunError(f"{directory}: was trained with another configuration than the study's; choose another --dir")
    events = runs.metrics(directory)
    speeds = [event["tokens_per_second"] for event in events if event["event"] == "step"]
    return {
        "arm": run.arm,
        "seed": run.seed,
        "directory": str(Path("runs") / run.arm / str(run.seed)),
        "held_out": {
            name: {"nll": event["nll"], "bits_per_byte": event["bits_per_byte"], "tokens": event["tokens_evaluated"]}
            for name, event in runs.final_evaluation(directory).items()
        },
        "steps": events[-1]["step"],
        "tokens": events[-1]["tokens"],
        "tokens_per_second": statistics.median(speeds),
        **{key: value for key, value in described.items() if key != "versions"},
        "versions": described["versions"],
    }


def check_pairing(entries: Sequence[Mapping[str, Any]]) -> None:
    """RunError unless all runs read the same data with the same tokenizer and are judged on the same tokens."""
    for entry in entries[1:]:
        first = entries[0]
        judged = {name: part["tokens"] for name, part in first["held_out"].items()}
        differing = [key for key in SHARED if entry[key] != first[key]]
        if {name: part["tokens"] for name, part in entry["held_out"].items()} != judged:
            differing.append("held-out tokens")
        if differing:
            raise RunError(
                f"{entry['directory']} and {first['directory']} have different {differing[0]}, so they cannot be "
                "compared; delete the one that is wrong and run the study again"
            )


def compare(study: Study, entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Paired differences of every arm from the baseline, one entry a held-out set, over the seeds that both have."""
    differences: list[dict[str, Any]] = []
    for held_out in held_out_names(entries):
        by_arm: dict[str, dict[int, float]] = {arm: {} for arm in study.arms}
        for entry in entries:
            by_arm[entry["arm"]][entry["seed"]] = entry["held_out"][held_out]["nll"]
        for arm in study.arms:
            by_seed = paired_differences(by_arm[arm], by_arm[study.reference])
            if arm == study.reference or not by_seed:
                continue
            values = list(by_seed.values())
            differences.append(
                {
                    "arm": arm,
                    "baseline": study.reference,
                    "held_out": held_out,
                    "by_seed": {str(seed): value for seed, value in by_seed.items()},
                    "summary": asdict(paired(values)) if len(values) > 1 else None,
                }
            )
    return differences


def held_out_names(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(entries[0]["held_out"]) if entries else []


def missing(run: Planned, directory: Path) -> dict[str, Any]:
    event = last_step(run.directory(directory))
    return {
        "arm": run.arm,
        "seed": run.seed,
        "step": 0 if event is None else event["step"],
        "steps": run.config.steps,
        "log": str(run.log(directory)),
    }


def provenance(entries: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The distinct values of what a fair comparison wants to be single; more than one is for the reader to judge."""
    found: dict[str, list[Any]] = {}
    for key in (*SHARED, "device", "precision", "threads", "deterministic", "impl", "versions"):
        for entry in entries:
            if entry[key] not in found.setdefault(key, []):
                found[key].append(entry[key])
    return found
