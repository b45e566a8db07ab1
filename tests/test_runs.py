import json
import multiprocessing

import pytest

from depthroute import runs
from depthroute.errors import RunError

FIELDS = {
    "step": {"nll": 2.0, "tokens_per_second": 100.0, "seconds": 0.5},
    "evaluation": {"held_out": "validation", "nll": 2.0, "bits_per_byte": 1.0, "tokens_evaluated": 64},
    "end": {"seconds": 0.5, "model": {}},
}


def event(kind, step, **fields):
    return {"event": kind, "step": step, "tokens": step * 10, **FIELDS[kind], **fields}


def lines(run, *events, tail=b""):
    content = b"".join(map(runs.encode, events)) + tail
    (run / runs.METRICS).write_bytes(content)


def test_an_atomic_write_replaces_the_file_and_leaves_nothing_beside_it(tmp_path):
    runs.write_atomic(tmp_path / "a", b"one")
    runs.write_atomic(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_directory_is_replaced_as_a_whole(tmp_path):
    runs.write_directory(tmp_path / "model", {"old": b"1"})
    runs.write_directory(tmp_path / "model", {"new": b"2"})
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "new"]


def test_what_the_writer_writes_is_what_readers_read(tmp_path):
    writer = runs.MetricsWriter(tmp_path)
    writer.write(**event("step", 1, nll=1 / 3))
    writer.write(**event("end", 1))
    writer.close()
    assert runs.metrics(tmp_path) == [event("step", 1, nll=1 / 3), event("end", 1)]


def test_a_number_that_json_lacks_is_not_written(tmp_path):
    writer = runs.MetricsWriter(tmp_path)
    with pytest.raises(ValueError, match="not JSON compliant"):
        writer.write("step", step=1, tokens=10, nll=float("nan"))
    writer.close()
    assert (tmp_path / runs.METRICS).read_bytes() == b""


def test_a_half_written_last_line_is_not_read(tmp_path):
    lines(tmp_path, event("step", 1), event("step", 2), tail=b'{"event": "st')
    assert [e["step"] for e in runs.metrics(tmp_path)] == [1, 2]


def vouched_for(body):
    """A line whose checksum is right, whatever it says."""
    start = body[:-1]
    return start + runs.SUM + runs.line_sum(start + b"}") + b'"}\n'


@pytest.mark.parametrize(
    "damage",
    [
        *(b"{]\n", b"\n", b"7\n", b'{"event": "step", "step": 2}\n', b"\xff\xfe\n"),
        *map(vouched_for, (b"{]}", b'{"event": "step"}', b"[" * 100_000 + b"}")),
        *(
            runs.encode({key: value for key, value in event("step", 2).items() if key != gone})
            for gone in event("step", 2)
        ),
        runs.encode(event("step", "2")),
        runs.encode(event("step", -2)),
        runs.encode(event("step", True)),
        runs.encode(event("evaluation", 1, nll=None)),
        runs.encode(event("evaluation", 1, held_out=["validation"])),
        runs.encode(event("end", 1, model="f00")),
    ],
    ids=range(5 + 3 + 6 + 6),
)
def test_a_damaged_line_is_named_with_its_file_and_number(tmp_path, damage):
    lines(tmp_path, event("step", 1), tail=damage + runs.encode(event("step", 2)))
    with pytest.raises(RunError, match=r"metrics\.jsonl: line 2 is damaged"):
        runs.metrics(tmp_path)


def test_no_bit_of_a_line_can_flip_unseen(tmp_path):
    line = runs.encode(event("evaluation", 1, held_out="validation", nll=2.8776))
    assert json.loads(line)["nll"] == 2.8776
    for bit in range(8 * (len(line) - 1)):
        flipped = bytearray(line)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / runs.METRICS).write_bytes(bytes(flipped) + runs.encode(event("end", 1)))
        with pytest.raises(RunError, match=r"metrics\.jsonl: line [12] is damaged"):
            runs.metrics(tmp_path)


def test_cutting_back_keeps_what_came_before_the_checkpoint(tmp_path):
    before = [event("evaluation", 0), event("step", 1), event("evaluation", 1), event("step", 2)]
    lines(tmp_path, *before, event("evaluation", 2), event("step", 3), event("end", 3), tail=b'{"ev')
    runs.cut_metrics(tmp_path, 2)
    assert runs.metrics(tmp_path) == before
    runs.cut_metrics(tmp_path, 0)
    assert runs.metrics(tmp_path) == []


def test_cutting_back_refuses_metrics_that_lack_a_step(tmp_path):
    lines(tmp_path, event("step", 1), event("step", 3))
    with pytest.raises(RunError, match="step 2 is missing or out of order"):
        runs.cut_metrics(tmp_path, 3)
    lines(tmp_path, event("step", 1), event("step", 2), event("step", 3))
    with pytest.raises(RunError, match="step 4 is missing"):
        runs.cut_metrics(tmp_path, 4)


def test_a_run_has_finished_when_the_end_is_written_and_the_model_is_there(tmp_path):
    assert not runs.finished(tmp_path)
    lines(tmp_path, event("step", 1), event("evaluation", 1, held_out="validation", nll=2.0))
    runs.write_directory(tmp_path / runs.MODEL, dict.fromkeys(runs.MODEL_FILES, b""))
    assert not runs.finished(tmp_path)
    with pytest.raises(RunError, match="has not ended"):
        runs.final_evaluation(tmp_path)
    with (tmp_path / runs.METRICS).open("ab") as file:
        file.write(runs.encode(event("end", 1, model=runs.model_sums(tmp_path))))
    assert runs.finished(tmp_path)
    assert runs.final_evaluation(tmp_path)["validation"]["nll"] == 2.0
    for name in runs.MODEL_FILES:
        (tmp_path / runs.MODEL / name).write_bytes(b"x")
        with pytest.raises(RunError, match=f"{name}: damaged .* delete {tmp_path}/model and train with --resume"):
            runs.finished(tmp_path)
        (tmp_path / runs.MODEL / name).write_bytes(b"")
    (tmp_path / runs.MODEL / runs.MODEL_FILES[0]).unlink()
    assert not runs.finished(tmp_path)


def test_reading_what_is_no_run_says_so(tmp_path):
    with pytest.raises(RunError, match=r"manifest\.json: missing"):
        runs.manifest(tmp_path)
    with pytest.raises(RunError, match=r"metrics\.jsonl: missing"):
        runs.metrics(tmp_path)
    (tmp_path / runs.MANIFEST).write_text("{")
    with pytest.raises(RunError, match=r"manifest\.json: damaged"):
        runs.manifest(tmp_path)


def hold(run, ready, leave):
    with runs.locked(run):
        ready.set()
        leave.wait(30)


def test_a_run_directory_belongs_to_one_process_until_it_ends_however(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready, leave = context.Event(), context.Event()
    holder = context.Process(target=hold, args=(tmp_path, ready, leave))
    holder.start()
    assert ready.wait(30)
    with pytest.raises(RunError, match="another process trains here"), runs.locked(tmp_path):
        pass
    holder.kill()
    holder.join()
    with runs.locked(tmp_path):
        assert not runs.started(tmp_path)
