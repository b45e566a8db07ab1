"""Trackers show what metrics.jsonl holds, and never decide how a run ends."""

import json
import logging
import sqlite3
import sys
from pathlib import Path

import pytest
from training import assert_same_run, tiny, trained, write_texts

from depthroute import config, runs
from depthroute.train import tracking

SHORT = {"tokens": 640, "evaluation": {"milestones": [320], "tokens": 256}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tracking")
    write_texts(place)
    trained(place, "plain", **SHORT)
    return place


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING, logger="depthroute")
    return lambda: [record.getMessage() for record in caplog.records if record.name.startswith("depthroute")]


def shown(run: Path, key: str) -> dict[int, float]:
    """What a tracker has to show of a run under `train/nll` or `validation/nll`, by step."""
    prefix, _, field = key.partition("/")
    wanted = "step" if prefix == "train" else "evaluation"
    return {event["step"]: event[field] for event in runs.metrics(run) if event["event"] == wanted}


def test_a_tracker_that_is_not_installed_is_one_warning_and_the_same_bits(folder, monkeypatch, warnings):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    run = trained(folder, "absent", track=["tensorboard"], **SHORT)
    assert warnings() == ["track: tensorboard is not installed, so it shows nothing: pip install 'depthroute[track]'"]
    assert_same_run(run, folder / "plain")


class Failing(tracking.Tracker):
    def __init__(self, run, config, step):
        self.left = 3

    def write(self, values, step):
        self.left -= 1
        if not self.left:
            raise OSError("the service\nis down")

    def close(self):
        raise AssertionError("a tracker that has failed is left alone")


def test_a_tracker_that_fails_on_the_way_is_one_warning_and_the_same_bits(folder, monkeypatch, warnings):
    monkeypatch.setitem(tracking.TRACKERS, "trackio", Failing)
    run = trained(folder, "failing", track=["trackio"], **SHORT)
    assert warnings() == ["track: trackio failed and shows nothing more of this run: the service is down"]
    assert_same_run(run, folder / "plain")


def test_trackers_are_off_by_default_and_decide_nothing_of_a_run(folder):
    plain, tracked = tiny(folder, **SHORT), tiny(folder, track=["wandb"], **SHORT)
    assert plain.track == ()
    assert config.digest(plain) == config.digest(tracked)
    assert config.first_difference(plain, tracked) is None
    assert "track:\n- wandb\n" in config.dump(tracked)
    with pytest.raises(config.ConfigError, match=r"track\.0"):
        tiny(folder, track=["tensorbored"])


def test_tensorboard_shows_the_numbers_of_the_metrics_file_also_of_a_resumed_run(folder, monkeypatch, warnings):
    reason = "tensorboard is not installed; it is in the extra `track`"
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason=reason)
    run = trained(folder, "board", track=["tensorboard"], **SHORT)
    assert warnings() == []
    assert_same_run(run, folder / "plain")
    events = accumulator.EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    for key in ("train/nll", "train/grad_norm", "validation/nll", "validation/bits_per_byte"):
        found = {event.step: event.value for event in events.Scalars(key)}
        assert found == pytest.approx(shown(run, key), rel=1e-6), key


def test_wandb_keeps_a_run_offline(folder, monkeypatch, warnings):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed; it is in the extra `track`")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = trained(folder, "wandb-run", track=["wandb"], **SHORT)
    assert warnings() == []
    assert_same_run(run, folder / "plain")
    wandb.teardown()  # Its service, a process of its own, may still be writing.
    (kept,) = (run / "wandb").glob("offline-run-*/run-*.wandb")
    content = kept.read_bytes()
    assert b"train/nll" in content
    assert b"validation/bits_per_byte" in content


def test_trackio_keeps_a_run_in_its_own_directory(folder, monkeypatch, tmp_path, warnings):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    pytest.importorskip("trackio", reason="trackio is not installed; it is in the extra `track`")
    run = trained(folder, "trackio-run", track=["trackio"], **SHORT)
    assert warnings() == []
    assert_same_run(run, folder / "plain")
    (database,) = tmp_path.rglob("depthroute*.db")
    with sqlite3.connect(database) as connection:
        rows = connection.execute("select step, metrics from metrics").fetchall()
    found = {step: json.loads(values)["train/nll"] for step, values in rows if "train/nll" in json.loads(values)}
    assert found == pytest.approx(shown(run, "train/nll"))
