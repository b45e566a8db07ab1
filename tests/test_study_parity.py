"""The parity gate: an implementation that computes something else stops a study before it trains anything."""

import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fabricated import plan_of, prereg_of

from depthroute import config
from depthroute.errors import ConfigError, RunError
from depthroute.model.parity import Parity, measure
from depthroute.ops import IMPLEMENTATIONS, reference
from depthroute.ops.result import Attended
from depthroute.study import parity, seal
from depthroute.study.plan import Study, plan_runs
from depthroute.study.results import collect
from studies import again, raw_study, write_text

CPU = torch.device("cpu")
TOKEN = (2, 5)
RESIDUALS = [
    {"preset": "attnres-block", "blocks": 2},
    {"preset": "rd-plr", "blocks": 2, "rank": 4},
    {"preset": "slr-full", "rank": 4, "routes": "temperature", "gain": True},
    {"preset": "prenorm"},
]


def detached_scale(
    queries: Any, keys: Any, values: Any, prior: Any, before: None, *, eps: float, gain: Any
) -> Attended:
    """The specification, but for a gradient that does not flow through the norm's scale: forward is perfect."""
    folded = queries if gain is None else queries * gain
    scored = [value[..., -queries.shape[1] :] for value in values] if keys is None else keys
    scales = [torch.rsqrt(key.square().mean(-1) + eps).detach() for key in scored]
    z = torch.stack([(key @ folded.mT).movedim(-1, 0) * scale for key, scale in zip(scored, scales, strict=True)])
    weights = torch.softmax(z, 0).unsqueeze(-1)
    return Attended(sum(weight * value for weight, value in zip(weights, values, strict=True)), z.logsumexp(0))


@pytest.fixture
def implementations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(IMPLEMENTATIONS, "same", reference)
    monkeypatch.setitem(IMPLEMENTATIONS, "wrong", SimpleNamespace(attend=detached_scale, merge=reference.merge))


def model_of(residual: dict[str, Any]) -> Any:
    shape = {"vocab": 32, "width": 16, "layers": 2, "heads": 2, "hidden": 16, "residual": residual}
    return config.from_dict({"model": shape}).model


@pytest.mark.parametrize("residual", RESIDUALS, ids=lambda residual: residual["preset"])
def test_the_specification_in_fp32_is_as_near_to_fp64_as_rounding_allows(residual: dict[str, Any]) -> None:
    found = measure(model_of(residual), "reference", TOKEN, CPU, half=False)
    assert 0.0 < found.forward < 2e-6
    assert 0.0 < found.gradient < 1e-5


def test_under_autocast_the_reads_stay_in_fp32(implementations: None) -> None:
    found = measure(model_of(RESIDUALS[0]), "reference", TOKEN, CPU, half=True)
    assert found.forward < 2e-6
    assert 1e-4 < found.gradient < 2.0**-6  # of sublayer outputs, which are bf16 and whose parts are added in bf16


def test_reads_in_two_phases_are_measured_where_the_run_reads_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def torn(queries: Any, keys: Any, values: Any, prior: Any, before: Attended | None, **options: Any) -> Attended:
        mixed, lse = reference.attend(queries, keys, values, prior, before, **options)
        return Attended(mixed if before is None else 1.001 * mixed, lse)

    monkeypatch.setitem(IMPLEMENTATIONS, "torn", SimpleNamespace(attend=torn, merge=reference.merge))
    model = model_of(RESIDUALS[0])
    assert measure(model, "torn", TOKEN, CPU, half=False).forward < 2e-6
    assert measure(model, "torn", TOKEN, CPU, half=False, two_phase=True).forward > 1e-4
    assert measure(model, "reference", TOKEN, CPU, half=False, two_phase=True).forward < 2e-6


@pytest.mark.usefixtures("implementations")
def test_a_wrong_gradient_behind_a_perfect_forward_is_found_and_named() -> None:
    found = measure(model_of(RESIDUALS[0]), "wrong", TOKEN, CPU, half=False)
    assert found.forward < 2e-6
    assert found.gradient > 0.01
    assert found.worst.startswith("gradient of ")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_text(tmp_path)
    return tmp_path


def crossed(second: str, tolerance: float | None = 1e-4) -> Any:
    def change(raw: dict[str, Any]) -> None:
        raw["cross"] = {"implementation": {"first": {"impl": "reference"}, "second": {"impl": second}}}
        if tolerance is not None:
            raw["parity"] = {"tolerance": {"fp32": tolerance}}

    return change


@pytest.mark.usefixtures("implementations")
def test_nothing_is_trained_by_an_implementation_outside_the_tolerance(folder: Path) -> None:
    with pytest.raises(
        RunError, match=r"wrong in rd\|implementation=second is .* away from fp64 in the gradient"
    ) as said:
        again(folder, folder / "study", crossed("wrong"))
    assert "\n" not in str(said.value)
    assert not (folder / "study/runs").exists()
    kept = json.loads((folder / "study/parity.json").read_text())
    assert {(one["cell"], one["within"]) for one in kept["entries"]} == {
        ("prenorm|implementation=first", True),
        ("rd|implementation=first", True),
        ("prenorm|implementation=second", True),
        ("rd|implementation=second", False),
    }


@pytest.mark.usefixtures("implementations")
def test_several_implementations_without_a_tolerance_are_not_planned(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"parity.tolerance.fp32: not given, and 2 implementations are compared"):
        again(folder, folder / "study", crossed("same", None))
    assert not (folder / "study/prereg.json").exists()


@pytest.mark.usefixtures("implementations")
def test_errors_inside_the_tolerance_are_kept_and_measured_once_a_plan(tmp_path: Path) -> None:
    raw = raw_study(Path("text.txt"))
    crossed("same")(raw)
    study, said = Study.parse(raw), []
    runs = plan_runs(study)
    plan = {"digest": "d1", "impl": {run.cell: run.config.impl for run in runs}}
    for digest in ("d1", "d1", "d2"):
        parity.pass_gate(study, {**plan, "digest": digest}, runs, tmp_path, said.append)
    assert len(said) == 2
    entries = parity.read(tmp_path)["entries"]
    assert [one["impl"] for one in entries] == ["reference", "reference", "same", "same"]
    assert all(one["within"] and one["gradient"] < 1e-5 for one in entries)


@pytest.mark.usefixtures("implementations")
def test_the_gate_measures_a_run_as_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    raw, asked = raw_study(Path("text.txt")), []
    crossed("same")(raw)
    raw["base"]["reads"] = "two_phase"
    monkeypatch.setattr(parity, "measure", lambda *given: asked.append(given[-1]) or Parity(0.0, 0.0, "none"))
    cells = {run.cell: run for run in plan_runs(Study.parse(raw))}
    parity.entries(cells, {cell: run.config.impl for cell, run in cells.items()}, {"fp32": 1e-5})
    assert asked == [True] * 4


@pytest.mark.usefixtures("implementations")
def test_on_another_device_an_unfinished_study_is_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, said = raw_study(Path("text.txt")), []
    crossed("same")(raw)
    study = Study.parse(raw)
    planned = plan_runs(study)
    plan = {"digest": "d", "impl": {run.cell: run.config.impl for run in planned}}
    monkeypatch.setattr(parity, "measure", lambda *given: Parity(0.0, 0.0, "none"))
    for name, finished, times in (("cpu", False, 1), ("a GPU", True, 1), ("a GPU", False, 2), ("a GPU", False, 2)):
        monkeypatch.setattr("depthroute.train.device.name", lambda place, name=name: name)
        monkeypatch.setattr("depthroute.runs.finished", lambda directory, finished=finished: finished)
        parity.pass_gate(study, plan, planned, tmp_path, said.append)
        assert len(said) == times


@pytest.mark.usefixtures("implementations")
def test_what_was_measured_under_another_plan_is_not_shown(tmp_path: Path) -> None:
    study = Study.parse(raw_study(Path("text.txt")))
    entries: list[dict[str, Any]] = []
    body = {"format": 1, "plan": "that failed", "tolerance": {"fp32": 1e-5}, "entries": entries}
    seal.write(tmp_path / parity.PARITY, seal.sealed(body))
    assert parity.read_of({"digest": "that failed"}, tmp_path) is not None
    plan = plan_of(["prenorm", "rd"], study.seeds)
    prereg = prereg_of(plan, [{"arm": "rd", "against": "prenorm"}])
    assert collect(prereg, plan, tmp_path)["parity"] is None


def test_an_interrupt_while_it_is_measured_stops_the_study_gently(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("depthroute.study.conduct.pass_gate", interrupted)
    results, outcome = again(folder, folder / "study")
    assert results == {}
    assert outcome.signal == signal.SIGINT
    assert (folder / "study/prereg.json").exists()


def test_one_implementation_needs_no_gate(tmp_path: Path) -> None:
    study = Study.parse(raw_study(Path("text.txt")))
    parity.pass_gate(study, {"digest": "d", "impl": "reference"}, plan_runs(study), tmp_path, lambda line: None)
    assert list(tmp_path.iterdir()) == []
