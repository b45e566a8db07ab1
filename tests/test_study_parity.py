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
from depthroute.ops import IMPLEMENTATIONS, reference, resolve
from depthroute.ops.result import Attended
from depthroute.study import parity, seal
from depthroute.study.plan import Study, plan_runs
from depthroute.study.results import collect
from depthroute.study.tuning import tuning_runs
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


def gated(raw: dict[str, Any], directory: Path, digest: str = "d") -> list[str]:
    """What the gate says before a study trains."""
    said: list[str] = []
    study = Study.parse(raw)
    impls = {run.cell: run.config.impl for run in plan_runs(study)}
    parity.pass_gate(study, {"digest": digest, "impl": impls}, directory, said.append)
    return said


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the gate asks to be measured, where nothing is wrong; last, whether gradients were deterministic."""
    found: list[tuple[Any, ...]] = []

    def measured(*given: Any) -> Parity:
        found.append((*given, torch.are_deterministic_algorithms_enabled()))
        return Parity(0.0, 0.0, "none")

    monkeypatch.setattr(parity, "measure", measured)
    return found


def compared() -> dict[str, Any]:
    """A study of two arms by two implementations."""
    raw = raw_study(Path("text.txt"))
    crossed("same")(raw)
    return raw


@pytest.mark.parametrize(
    ("parity", "message"),
    [
        ({"tolerance": {"fp32": 0}}, "parity.tolerance.fp32: Input should be greater than 0, not 0"),
        ({"tolerance": {"fp32": 1.5}}, "parity.tolerance.fp32: Input should be less than 1, not 1.5"),
        ({"tolerance": {"fp23": 1e-5}}, "parity.tolerance.fp23: Input should be 'fp32' or 'bf16', not 'fp23'"),
        ({"tolerance": 1e-5}, "parity.tolerance: give a mapping of keys to values, not 1e-05"),
    ],
)
def test_a_tolerance_that_cannot_be_is_one_line_that_names_its_key(parity: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Study.parse(compared() | {"parity": parity})
    assert str(caught.value) == message


@pytest.mark.usefixtures("implementations")
def test_errors_inside_the_tolerance_are_kept_with_the_machine_they_were_measured_on(tmp_path: Path) -> None:
    assert len(gated(compared(), tmp_path)) == 1
    kept = parity.read(tmp_path)
    assert [one["impl"] for one in kept["entries"]] == ["reference", "reference", "same", "same"]
    assert all(one["within"] and one["gradient"] < 1e-5 for one in kept["entries"])
    assert kept["processor"] in Path("/proc/cpuinfo").read_text()
    assert (kept["capability"], kept["torch"]) == (torch.backends.cpu.get_cpu_capability(), torch.__version__)


@pytest.mark.usefixtures("implementations")
def test_while_anything_is_to_train_nothing_measured_before_is_believed(
    tmp_path: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gated(compared(), tmp_path)
    honest = (tmp_path / parity.PARITY).read_text()
    forged = json.loads(honest)
    forged["entries"][0] |= {"forward": 0.5, "within": False}
    seal.write(tmp_path / parity.PARITY, seal.sealed(forged))
    assert len(gated(compared(), tmp_path)) == 1
    assert (tmp_path / parity.PARITY).read_text() == honest
    monkeypatch.setattr("depthroute.runs.finished", lambda directory: True)
    assert gated(compared(), tmp_path) == [], "nothing is to train"
    assert len(gated(compared(), tmp_path, "that of another plan")) == 1


@pytest.mark.usefixtures("implementations")
@pytest.mark.parametrize("deterministic", [True, False])
def test_the_gate_measures_a_run_as_it_reads_and_as_deterministic_as_it_is(
    tmp_path: Path, asked: list[Any], deterministic: bool
) -> None:
    raw = compared()
    raw["base"] |= {"reads": "two_phase", "deterministic": deterministic}
    gated(raw, tmp_path)
    assert [given[-2:] for given in asked] == [(True, deterministic)] * 4
    assert {one["deterministic"] for one in parity.read(tmp_path)["entries"]} == {deterministic}
    assert not torch.are_deterministic_algorithms_enabled()


def tuned(**grid: list[Any]) -> dict[str, Any]:
    raw = compared()
    raw["base"]["data"]["held_out"] = {"tuning": {"files": ["other.txt"], "validation": 1.0}}
    by_key = {key.replace("__", "."): values for key, values in grid.items()}
    raw["tuning"] = {"seeds": [7], "tokens": 8192, "held_out": "tuning", "arms": {"rd": by_key}}
    return raw


@pytest.mark.usefixtures("implementations")
def test_every_shape_that_tuning_may_choose_is_measured_before_it_trains(tmp_path: Path, asked: list[Any]) -> None:
    gated(tuned(model__width=[16, 32], optimizer__queries=[0.001, 0.01]), tmp_path)
    assert sorted((given[0].width, given[1]) for given in asked if "attnres" in repr(given[0].residual)) == [
        (16, "reference"),
        (16, "same"),
        (32, "reference"),
        (32, "same"),
    ]
    assert [one["cell"] for one in parity.read(tmp_path)["entries"] if one["impl"] == "same"] == [
        "prenorm|implementation=second",
        "rd|implementation=second",
        "rd|implementation=second with width=16 queries=0.001",
    ]


@pytest.mark.usefixtures("implementations")
def test_a_precision_that_only_tuning_tries_needs_a_tolerance_too() -> None:
    study = Study.parse(tuned(precision=["fp32", "bf16"]))
    cells = {run.cell: run for run in plan_runs(study)}
    impls = {cell: run.config.impl for cell, run in cells.items()}
    parity.check_tolerance(study, impls, [*cells.values()])
    with pytest.raises(ConfigError, match=r"parity.tolerance.bf16: not given"):
        parity.check_tolerance(study, impls, [*cells.values(), *tuning_runs(study)])


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
    parity.pass_gate(study, {"digest": "d", "impl": "reference"}, tmp_path, lambda line: None)
    assert list(tmp_path.iterdir()) == []


def test_levels_that_are_one_implementation_under_two_names_are_refused(folder: Path) -> None:
    def change(raw: dict[str, Any]) -> None:
        crossed(resolve("auto"))(raw)
        raw["cross"]["implementation"]["first"] = {"impl": "auto"}

    with pytest.raises(ConfigError, match=r"cross.implementation: levels 'first' and 'second' are one and the same"):
        again(folder, folder / "study", change)
    assert not (folder / "study/prereg.json").exists()
