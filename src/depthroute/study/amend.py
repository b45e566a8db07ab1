"""What a study says now against what its plan says, and how a difference becomes a dated amendment."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from depthroute import config, runs
from depthroute.errors import ConfigError, RunError
from depthroute.study import prereg, tuning
from depthroute.study.cells import cell_name
from depthroute.study.plan import Contrast, Study, contrasts, plan_runs, run_config
from depthroute.study.results import flags
from depthroute.study.spec import CrossingSpec
from depthroute.study.state import check_same_run, manifest

DATA = ("data_digest", "tokenizer_digest")
RESTORE = "restore the text that the runs were trained on, or choose another --dir for a new study"
ENVIRONMENT = (*DATA, "versions", "impl")


def design_differences(plan: prereg.Document, study: Study) -> list[str]:
    """How `study` differs from the one that was planned, one line a change."""
    before = prereg.planned_study(plan)
    lines = changes("", design(before), design(study))
    lines += _config_changes(before, study)
    if not lines:
        now = {run.cell: prereg.digest_without_seed(run.config) for run in plan_runs(study)}
        lines = [
            f"{cell} is read as another configuration" for cell in now if now[cell] != plan["config_digests"].get(cell)
        ]
    return lines


def environment_differences(plan: prereg.Document, new: prereg.Document) -> list[str]:
    """How data, versions and implementation differ from the planned ones."""
    return [line for key in ENVIRONMENT for line in changes(key, plan[key], new[key])]


def design(study: Study) -> dict[str, Any]:
    """All that a plan fixes beside the configurations of its runs, each list under the word for one of it."""
    written = study.model_dump(mode="json")
    return {
        "question": study.question,
        "arm": list(study.arms),
        "cross": {factor: {"level": list(levels)} for factor, levels in study.cross.items()},
        "seed": study.seeds,
        "baseline": study.reference,
        "contrast": [_contrast_words(contrast) for contrast in contrasts(study)],
        "crossing": [_crossing_words(crossing) for crossing in study.crossings],
        "parity": written["parity"],
        "significance": {"level": study.level},
        "power": written["power"],
        "tuning": written["tuning"],
        "replicate": [f"of {cell_name(one.arm, one.at)} seed {one.seed}" for one in study.replicates],
    }


def changes(name: str, was: Any, now: Any) -> list[str]:
    """How `now` differs from `was`, one line a change."""
    if was == now:
        return []
    if isinstance(was, dict) and isinstance(now, dict):
        ours, theirs = cast(dict[str, Any], was), cast(dict[str, Any], now)
        below = {key: f"{name}.{key}" if name else key for key in {**ours, **theirs}}
        return [line for key, words in below.items() for line in changes(words, ours.get(key), theirs.get(key))]
    if isinstance(was, list) and isinstance(now, list):
        before, after = cast(list[Any], was), cast(list[Any], now)
        removed = [f"removes {name} {item}" for item in before if before.count(item) > after.count(item)]
        return removed + [f"adds {name} {item}" for item in after if after.count(item) > before.count(item)]
    return [f"{name} was {_shown(was)}, is now {_shown(now)}"]


def amended(directory: Path, study: Study, data: Path, why: str) -> tuple[prereg.Document, dict[str, Any], list[str]]:
    """The amended plan, what stays frozen of its tuning, and the lines of the amendment. Writes nothing.

    ConfigError without a reason; RunError if nothing differs, or if what was trained already would be another run.
    """
    if not why.strip():
        raise ConfigError("--why: say in a few words why the plan changes")
    old, new = prereg.read(directory), prereg.document(study, data)
    lines = design_differences(old, study) + environment_differences(old, new)
    if not lines:
        raise RunError(f"{directory}: the study says what its plan says; there is nothing to amend")
    if begun(directory) and list(old["cross"]) != list(study.cross):
        raise RunError(f"{directory}: its runs lie by other factors than cross has now; choose another --dir")
    frozen = _still_frozen(study, directory, lines)
    plan = plan_runs(study, {cell: entry["selected"] for cell, entry in frozen.items()})
    for run in [*tuning.tuning_runs(study), *plan]:
        check_same_run(run, directory)
    before = plan_runs(prereg.planned_study(old))
    finished = [run for run in before if runs.finished(run.directory(directory))]
    if finished and (moved := first_of(DATA, environment_differences(old, new))):
        raise RunError(f"{directory}: {moved}: amending would disown {counted(len(finished))}; {RESTORE}")
    entry = {
        "date": new["date"],
        "why": " ".join(why.split()),
        "changes": lines,
        "runs_finished": len(finished),
        "runs_planned": len(before),
        "digest_before": old["digest"],
    }
    amendments = [*old["amendments"], entry]
    return prereg.sealed({**new, "date": old["date"], "amendments": amendments}), frozen, lines


def refuse(directory: Path, plan: prereg.Document, lines: Sequence[str], file: str) -> None:
    """RunError for a study that differs from its plan."""
    told = f"{directory}: differs from the plan of {plan['date']}"
    if begun(directory) and (moved := first_of(DATA, lines)):
        raise RunError(f"{told}: {moved}; {RESTORE} (amending would disown the finished runs)")
    hint = f'record it by: depthroute study amend {file} --dir {directory} --why "..."'
    if not begun(directory):
        hint = f"nothing has run yet, so plan anew by: depthroute study plan {file} --dir {directory}"
    raise RunError(f"{told}: {lines[0]}; {hint}, or choose another --dir")


def disowned(old: prereg.Document, new: prereg.Document, study: Study, directory: Path) -> int:
    """How many finished runs agreed with the old plan and would be flagged under the new one."""
    described = [
        (run, manifest(run, directory))
        for run in plan_runs(prereg.planned_study(old))
        if run.arm in study.arms and runs.finished(run.directory(directory))
    ]
    kept = [(run, content) for run, content in described if run.cell in new["config_digests"]]
    return sum(not flags(content, old, run.cell) and bool(flags(content, new, run.cell)) for run, content in kept)


def first_of(keys: Sequence[str], lines: Sequence[str]) -> str | None:
    return next((line for line in lines if line.startswith(tuple(keys))), None)


def counted(finished: int) -> str:
    return "1 finished run" if finished == 1 else f"{finished} finished runs"


def begun(directory: Path) -> bool:
    """Whether a study directory holds any run, of its tuning or itself."""
    return any((directory / kind).exists() for kind in ("runs", "tuning"))


def _still_frozen(study: Study, directory: Path, lines: Sequence[str]) -> dict[str, Any]:
    """The frozen selections that the study as it is now would make from the same runs.

    RunError if runs have begun that such a selection would change.
    """
    frozen, now = tuning.read(directory), tuning.digests(study)
    kept = {cell: entry for cell, entry in frozen.items() if now.get(cell) == entry["digest"]}
    for run in plan_runs(study):
        tuned = run.cell in frozen or (study.tuning is not None and study.tuning.of(run.arm))
        if tuned and run.cell not in kept and runs.started(run.directory(directory)):
            changed = next((line for line in lines if f"arm {run.cell} " in line), lines[0])
            raise RunError(
                f"{run.directory(directory)}: began before the tuning that is asked for now ({changed}); "
                "choose another --dir"
            )
    return kept


def _config_changes(before: Study, now: Study) -> list[str]:
    """Every key in which a cell of both studies differs, said once where it is the same for all."""
    cells = [(arm, at) for at in before.combinations for arm in before.arms if arm in now.arms]
    cells = [(arm, at) for arm, at in cells if at in now.combinations]
    found: dict[str, list[str]] = {}
    for arm, at in cells:
        ours, theirs = (_flat(one, arm, at) for one in (before, now))
        for key in {**ours, **theirs}:
            was, new = (side.get(key, config.ABSENT) for side in (ours, theirs))
            if was != new:
                found.setdefault(f"was {_shown(was)}, is now {_shown(new)}|{key}", []).append(cell_name(arm, at))
    lines: list[str] = []
    for change, where in found.items():
        words, _, key = change.rpartition("|")
        lines += [f"{key} {words}"] if len(where) == len(cells) else [f"{key} of arm {cell} {words}" for cell in where]
    return lines


def _flat(study: Study, arm: str, at: Mapping[str, str]) -> dict[str, Any]:
    return config.flatten(config.deciding(run_config(study, arm, at, 0)))


def _contrast_words(contrast: Contrast) -> str:
    margin = "" if contrast.margin is None else f", margin {contrast.margin:g}"
    rank = ", primary" if contrast.primary else ""
    return f"{cell_name(contrast.arm, contrast.at)} against {contrast.against} on {contrast.held_out}{rank}{margin}"


def _crossing_words(crossing: CrossingSpec) -> str:
    margin = "" if crossing.margin is None else f", margin {crossing.margin:g}"
    return f"of {crossing.factor} on {crossing.held_out}{margin}"


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)
