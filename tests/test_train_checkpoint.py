import json
import resource
import shutil
from contextlib import contextmanager

import pytest
import torch
import training

from depthroute import config, runs
from depthroute.errors import RunError
from depthroute.train import checkpoint, optim, start


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    training.write_texts(folder)
    training.trained(folder, "unbroken")
    return folder


@pytest.fixture
def run(folder, tmp_path):
    """A copy of a run that was stopped after its last step: checkpoints at steps 20 and 24, no evaluation, no model."""
    run = tmp_path / "stopped"
    shutil.copytree(folder / "unbroken", run)
    shutil.rmtree(run / "model")
    return run


def resumed(folder, run, **changes):
    training.train(training.tiny(folder, **changes), run, folder / "data", resume=True)


def saved(run):
    return [path.name for path in checkpoint.found(run)]


@contextmanager
def no_file_larger_than(size):
    """The system refuses to write a file beyond `size` bytes, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_last_checkpoints_are_kept_and_nothing_else(run):
    assert saved(run) == ["step-00000020", "step-00000024"]
    assert sorted(path.name for path in (run / "checkpoints").rglob("*.*")) == sorted(
        ["checkpoint.json", "model.safetensors", "optimizer.safetensors"] * 2
    )


@pytest.mark.parametrize("method", ["muon", "adamw"])
def test_a_restored_checkpoint_is_the_model_and_optimizer_bit_for_bit(folder, tmp_path, method):
    settings = training.tiny(folder, optimizer={"matrices": {"method": method}})
    model = start.build_model(settings, 257, torch.device("cpu"))
    optimizers = optim.optimizers(model, settings.optimizer)
    for _ in range(3):
        model(torch.arange(8).view(1, 8)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    point = checkpoint.Point(3, 24, 0.5, "c", "d")
    checkpoint.save(tmp_path, point, model, optimizers, keep=1)
    fresh = start.build_model(settings, 257, torch.device("cpu"))
    fresh_optimizers = optim.optimizers(fresh, settings.optimizer)
    found = checkpoint.newest(tmp_path)
    assert found is not None
    checkpoint.restore(found, fresh, fresh_optimizers)
    assert found.point == point
    pairs = [
        (checkpoint.weights(model), checkpoint.weights(fresh)),
        (checkpoint.optimizer_state(model, optimizers), checkpoint.optimizer_state(fresh, fresh_optimizers)),
    ]
    for before, after in pairs:
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("name", [checkpoint.WEIGHTS, checkpoint.STATE, checkpoint.HEADER])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_checkpoint_is_never_trained_on_and_the_way_back_works(folder, run, name, damage):
    bad = run / "checkpoints/step-00000024"
    content = bytearray((bad / name).read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "flip":
        (bad / name).write_bytes(content)
    elif damage == "truncate":
        (bad / name).write_bytes(content[:-7])
    else:
        (bad / name).unlink()
    metrics = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(RunError) as error:
        resumed(folder, run)
    assert str(error.value).startswith(f"{bad / name}: ")
    assert f"{bad.with_name('step-00000020')} is whole: delete {bad} and use --resume" in str(error.value)
    assert (run / "metrics.jsonl").read_bytes() == metrics
    shutil.rmtree(bad)
    resumed(folder, run)
    training.assert_same_run(run, folder / "unbroken")


def test_every_bit_of_the_header_is_vouched_for(run):
    path = run / "checkpoints/step-00000024" / checkpoint.HEADER
    header = json.loads(path.read_text())
    header["point"]["step"] = 20
    path.write_text(json.dumps(header))
    with pytest.raises(RunError, match=r"checkpoint\.json: damaged"):
        checkpoint.read(path.parent)


def test_without_any_whole_checkpoint_the_way_back_is_the_start(folder, run):
    for path in checkpoint.found(run):
        (path / checkpoint.WEIGHTS).write_bytes(b"")
    with pytest.raises(RunError, match=r"no earlier checkpoint is whole: delete \S+checkpoints and use --resume"):
        resumed(folder, run)
    shutil.rmtree(run / "checkpoints")
    resumed(folder, run)
    training.assert_same_run(run, folder / "unbroken")


def test_what_a_killed_writer_left_is_ignored_and_removed(folder, run):
    for name in ("step-00000024", "step-00000020"):
        shutil.copytree(run / "checkpoints" / name, run / f"checkpoints/.{name}.partial")
    shutil.rmtree(run / "checkpoints/step-00000024")
    (run / ".metrics.jsonl.partial").write_bytes(b"{")
    resumed(folder, run)
    training.assert_same_run(run, folder / "unbroken")
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000020", "step-00000024"]


def test_a_disk_that_fills_up_in_a_checkpoint_leaves_the_earlier_one_whole(folder):
    with no_file_larger_than(100_000), pytest.raises(RunError) as error:
        training.trained(folder, "full", checkpoint={"every": 5})
    assert "checkpoints/step-00000005: cannot be written (File too large); there is no earlier one" in str(error.value)
    assert list((folder / "full/checkpoints").iterdir()) == []
    resumed(folder, folder / "full", checkpoint={"every": 5})
    training.assert_same_run(folder / "full", folder / "unbroken")


def test_a_disk_that_fills_up_in_the_metrics_leaves_a_run_that_resumes(folder, run):
    shutil.rmtree(run / "checkpoints/step-00000024")
    runs.cut_metrics(run, 20)
    before = saved(run)
    size = (run / "metrics.jsonl").stat().st_size
    with no_file_larger_than(size + 300), pytest.raises(RunError) as error:
        resumed(folder, run)
    assert f"{run / 'metrics.jsonl'}: cannot be written (File too large)" in str(error.value)
    assert (run / "metrics.jsonl").stat().st_size == size + 300
    assert saved(run) == before
    resumed(folder, run)
    training.assert_same_run(run, folder / "unbroken")


def test_resuming_with_another_configuration_names_the_key_and_both_values(folder, run):
    with pytest.raises(RunError, match=r"another configuration: optimizer\.matrices\.momentum was 0\.95, now 0\.5"):
        resumed(folder, run, optimizer={"matrices": {"momentum": 0.5}})


def test_resuming_on_other_data_is_refused(folder, run, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    training.write_texts(other)
    (other / "3.txt").write_text("another text in its place, long enough to be kept")
    stored = (run / "config.yaml").read_text().replace(str(folder), str(other))
    (run / "config.yaml").write_text(stored)
    with pytest.raises(RunError, match="its bits would differ: config_digest"):
        training.train(config.load(run / "config.yaml"), run, other / "data", resume=True)
    manifest = runs.manifest(run) | {"config_digest": config.digest(config.load(run / "config.yaml"))}
    (run / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RunError, match="its bits would differ: data_digest in manifest"):
        training.train(config.load(run / "config.yaml"), run, other / "data", resume=True)


def test_resuming_under_another_version_is_refused(folder, run):
    manifest = runs.manifest(run)
    manifest["versions"]["torch"] = "1.0"
    (run / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RunError, match=r"versions\.torch in manifest\.json is '1\.0', now"):
        resumed(folder, run)


def test_a_directory_with_a_run_is_never_started_over(folder):
    before = {path: path.stat().st_mtime_ns for path in (folder / "unbroken").rglob("*")}
    with pytest.raises(RunError, match=r"unbroken: already holds a run; go on with it by --resume"):
        training.trained(folder, "unbroken")
    training.trained(folder, "unbroken", resume=True)
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "unbroken").rglob("*")}


def test_resuming_in_a_fresh_directory_starts_anew(folder):
    training.assert_same_run(training.trained(folder, "fresh", resume=True), folder / "unbroken")


def test_a_damaged_line_of_metrics_stops_the_resuming(folder, run):
    content = (run / "metrics.jsonl").read_bytes().replace(b'"step": 7,', b'"step" 7,', 1)
    (run / "metrics.jsonl").write_bytes(content)
    with pytest.raises(RunError, match=r"metrics\.jsonl: line 8 is damaged"):
        resumed(folder, run)
