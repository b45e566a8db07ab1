"""Real processes, really killed. Each costs an import of torch, so there are few."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import training
import yaml

from depthroute import runs
from depthroute.config import dump

CHANGES = {"tokens": 120 * 64, "checkpoint": {"every": 4, "keep": 2}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    training.write_texts(folder)
    training.trained(folder, "unbroken", **CHANGES)
    (folder / "run.yaml").write_text(dump(training.tiny(folder, **CHANGES)))
    return folder


def command(folder, run, *options):
    settings = [str(folder / "run.yaml"), "--run", str(run), "--data", str(folder / "data"), *options]
    return [sys.executable, "-m", "depthroute", "train", *settings]


def launch(folder, run, *options):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command(folder, run, *options), stderr=subprocess.PIPE, text=True, env=environment)


def wait_for_events(run, count, process):
    """Until the metrics hold more than `count` lines, or the process has ended."""
    path = run / runs.METRICS
    while process.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") <= count):
        time.sleep(0.0005)


def test_a_run_killed_again_and_again_ends_in_the_same_bits(folder, tmp_path):
    run, draw = tmp_path / "run", random.Random()
    kills = sorted(draw.sample(range(-1, 100), 2))
    for lines in kills:
        process = launch(folder, run, "--resume")
        wait_for_events(run, lines, process)
        time.sleep(draw.random() * 0.02)
        process.kill()
        _, errors = process.communicate()
        assert process.returncode in (-signal.SIGKILL, 0), f"killed after {kills}: {errors}"
        saved = [path.name for path in (run / "checkpoints").glob("step-*")]
        assert len(saved) <= 3
    process = launch(folder, run, "--resume")
    _, errors = process.communicate()
    assert process.returncode == 0, f"killed after {kills}: {errors}"
    training.assert_same_run(run, folder / "unbroken")


def test_a_signal_saves_a_checkpoint_says_how_to_go_on_and_loses_no_step(folder, tmp_path):
    run = tmp_path / "run"
    for number, lines in ((signal.SIGTERM, 7), (signal.SIGINT, 20)):
        process = launch(folder, run, "--resume")
        wait_for_events(run, lines, process)
        process.send_signal(number)
        _, errors = process.communicate()
        done = max(event["step"] for event in runs.metrics(run))
        assert process.returncode == 128 + number
        assert errors.splitlines()[-1] == f"{run}: stopped at step {done} with a checkpoint; go on with --resume"
        assert (run / f"checkpoints/step-{done:08d}").is_dir()
    training.trained(folder, str(run), resume=True, **CHANGES)
    training.assert_same_run(run, folder / "unbroken")


def test_errors_and_results_of_the_command(folder, tmp_path, monkeypatch, capsys):
    """In this process: the command's answers to a user."""
    from depthroute.cli import main

    def answer(*options, config=folder / "run.yaml", run="unbroken"):
        words = ["train", str(config), "--run", str(folder / run), "--data", str(folder / "data"), *options]
        monkeypatch.setattr(sys, "argv", ["depthroute", *words])
        with pytest.raises(SystemExit) as exit_:
            main()
        output = capsys.readouterr()
        return exit_.value.code or 0, output.out, output.err

    nll = runs.final_evaluation(folder / "unbroken")["validation"]["nll"]
    code, out, err = answer("--resume")
    assert (code, err) == (0, f"{folder / 'unbroken'}: this run has already ended\n")
    assert out.startswith(f"run {folder / 'unbroken'}\nvalidation  {nll:.4f} nats a token  ")
    code, out, err = answer()
    assert (code, out) == (2, "")
    assert (
        err
        == f"error: {folder / 'unbroken'}: already holds a run; go on with it by --resume, or choose another --run\n"
    )
    for options, message in (
        (["--set", "model.widht=3"], f"error: {folder / 'run.yaml'}: model.widht: unknown key (did you mean 'width'?"),
        (
            ["--set", "optimizer.matrices.method=sgd"],
            f"error: {folder / 'run.yaml'}: optimizer.matrices.method: Input should be 'muon' or 'adamw'",
        ),
    ):
        code, out, err = answer(*options, run="none")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(message)
    assert answer(config=tmp_path / "no.yaml") == (2, "", f"error: {tmp_path / 'no.yaml'}: no such file\n")
    code, out, err = answer(run="/sys/depthroute")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: /sys/depthroute: ")


def test_the_example_trains(tmp_path, monkeypatch, capsys):
    from depthroute.cli import main

    example = yaml.safe_load((training.EXAMPLES / "tiny.yaml").read_text())
    assert example["model"] == {"size": "tiny", "residual": {"preset": "rd", "blocks": 4}}
    # On bytes and without the further domain, which only cost time here.
    sets = [
        "data.tokenizer=byte",
        "data.held_out={}",
        "tokens=2048",
        "batch=2",
        "length=64",
        "schedule.warmup=2",
        "evaluation={tokens: 256}",
        "device=cpu",
    ]
    settings = [part for setting in sets for part in ("--set", setting)]
    words = ["train", str(training.EXAMPLES / "tiny.yaml"), "--run", str(tmp_path / "run"), "--data", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["depthroute", *words, *settings])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert not exit_.value.code
    assert capsys.readouterr().out.splitlines()[0] == f"run {tmp_path / 'run'}"
    assert runs.finished(tmp_path / "run")
