"""What a person sees while a run trains."""

import pytest

from depthroute.train import progress
from depthroute.train.progress import TrainingProgress, amount, duration


@pytest.mark.parametrize(("seconds", "words"), [(8.6, "9s"), (185.0, "3m 05s"), (3725.0, "1h 02m")])
def test_time_left_is_told_in_two_units(seconds, words):
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("size", "words"), [(512, "512 bytes"), (8192, "8.2 kB"), (640_000, "640.0 kB"), (1_234_000_000, "1,234.0 MB")]
)
def test_an_amount_of_text_is_told_in_a_unit_that_shows_it(size, words):
    assert amount(size) == words


def test_an_evaluation_tells_how_much_it_has_read_and_before_that_only_of_what(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with TrainingProgress(shown=True) as shown:
        shown.evaluating("plays", 0)
        shown.evaluating("plays", 4321)
    assert capsys.readouterr().err.splitlines() == ["plays", "plays: 4.3 kB"]


def test_in_a_pipe_a_line_comes_every_few_seconds_and_at_the_end(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with TrainingProgress(shown=True) as shown:
        for step in range(1, 13):
            now[0] += 1.0
            shown.update(step, 12, nll=3.25, tokens_per_second=12345.6, seconds_left=12.0 - step)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["1/12", "6/12", "11/12", "12/12"]
    assert lines[1] == "step 6/12  nll 3.2500  12,346 tokens/s  6s left"


def test_on_a_terminal_a_bar_tells_loss_speed_and_time_left(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with TrainingProgress(shown=True) as shown:
        shown.update(3, 12, nll=3.25, tokens_per_second=12345.6, seconds_left=90.0)
    seen = capsys.readouterr().err
    assert "step 3/12  nll 3.2500  12,346 tokens/s  1m 30s left" in seen
    assert "━" in seen
