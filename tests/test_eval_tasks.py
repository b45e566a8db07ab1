"""Tasks of lm-evaluation-harness, all local: the harness gets what the model says, and its numbers come back."""

import json
from pathlib import Path

import pytest
import torch
from networks import attnres, moved

from depthroute.data import Tokenizer
from depthroute.data.tokenizer import byte_json
from depthroute.errors import ConfigError, RunError
from depthroute.evaluation.score import Scorer
from depthroute.evaluation.trained import Trained

instance = pytest.importorskip(
    "lm_eval.api.instance", reason="lm-evaluation-harness is not installed; it is in the extra `eval`"
)
from depthroute.evaluation.harness import HarnessModel, Tasks, numbers  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # of the harness and what it imports
LENGTH = 48


@pytest.fixture(scope="module")
def run() -> Trained:
    tokenizer = Tokenizer(byte_json(), "bytes")
    return Trained(Scorer(moved(attnres(), vocab=257), tokenizer.end, LENGTH, 4), tokenizer, {})


@pytest.fixture
def model(run) -> HarnessModel:
    return HarnessModel(run)


def request(kind: str, *arguments: object):
    return instance.Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def log_probabilities(run: Trained, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return run.scorer.model(torch.tensor([ids]))[0].log_softmax(-1)


def test_a_continuation_is_judged_after_its_context_and_told_whether_it_is_the_greedy_one(run, model):
    context, continuation = "the layer", " reads"
    ids = run.tokenizer.encode(context + continuation)
    log_p = log_probabilities(run, ids)
    expected = sum(log_p[len(context) - 1 + n, ord(letter)].item() for n, letter in enumerate(continuation))
    greedy = model.generate(context, {"max_gen_toks": 4, "until": []})
    first, second = model.loglikelihood(
        [request("loglikelihood", context, continuation), request("loglikelihood", context, greedy)],
        disable_tqdm=True,
    )
    assert first == (pytest.approx(expected, rel=1e-5), False)
    # Bytes that are no text cannot come back as the ids that they were.
    assert second[1] is (run.tokenizer.encode(greedy) == greedy_ids(run, context, 4))


def greedy_ids(run: Trained, context: str, count: int) -> list[int]:
    ids = run.tokenizer.encode(context)
    for _ in range(count):
        ids.append(int(log_probabilities(run, ids[-LENGTH:])[-1].argmax()))
    return ids[-count:]


def test_an_empty_context_is_the_end_of_the_text_before(run, model):
    ((found, _),) = model.loglikelihood([request("loglikelihood", "", "abc")], disable_tqdm=True)
    log_p = log_probabilities(run, [run.scorer.end, *b"ab"])
    assert found == pytest.approx(sum(log_p[n, byte].item() for n, byte in enumerate(b"abc")), rel=1e-5)


def test_a_whole_text_is_judged_as_eval_text_judges_a_document(run, model):
    text = "a text of more than one window, " * 4
    (found,) = model.loglikelihood_rolling([request("loglikelihood_rolling", text)])
    (nats,) = run.scorer.nats([run.tokenizer.encode(text)])
    assert found == -nats


def test_a_context_too_long_loses_its_beginning_and_is_counted(run, model):
    context = "x" * 100 + "the layer"
    ((long, _),) = model.loglikelihood([request("loglikelihood", context, " reads")], disable_tqdm=True)
    kept = (context + " reads")[-LENGTH - 1 : -len(" reads")]
    ((short, _),) = model.loglikelihood([request("loglikelihood", kept, " reads")], disable_tqdm=True)
    assert model.truncated == 1
    assert long == pytest.approx(short, rel=1e-6)
    with pytest.raises(RunError, match="continuation of 49 tokens"):
        model.loglikelihood([request("loglikelihood", "a", "b" * 49)], disable_tqdm=True)


def test_text_is_generated_greedily_up_to_a_stop(run, model):
    whole = run.tokenizer.decode(greedy_ids(run, "the layer", 12))
    asked = {"max_gen_toks": 12, "until": []}
    assert model.generate("the layer", asked) == whole
    stop = whole[3:5]
    assert model.generate("the layer", {**asked, "until": [stop]}) == whole[: whole.index(stop)]
    with pytest.raises(RunError, match="only greedy text"):
        model.generate("the layer", {**asked, "do_sample": True, "temperature": 0.7})


def write_task(folder: Path, name: str, rows: list[dict], **more: object) -> Path:
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = folder / f"{name}.yaml"
    described = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / f"{name}.jsonl")}},
        "test_split": "test",
        **more,
    }
    path.write_text(json.dumps(described))  # JSON is YAML
    return path


def test_local_tasks_of_every_kind_of_request_are_answered_without_a_network(run, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    questions = [{"q": "a layer reads what others", "choices": [" wrote", " xxxxx"], "answer": n % 2} for n in range(4)]
    choice = write_task(
        tmp_path,
        "deeper",
        questions,
        output_type="multiple_choice",
        doc_to_text="{{q}}",
        doc_to_choice="{{choices}}",
        doc_to_target="{{answer}}",
        metric_list=[{"metric": "acc"}],
    )
    texts = [{"text": "the route went deeper and deeper"}, {"text": "a block"}]
    rolling = write_task(
        tmp_path,
        "rolling",
        texts,
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{text}}",
        metric_list=[{"metric": "byte_perplexity"}, {"metric": "bits_per_byte"}],
    )
    said = [{"q": "the layer", "a": HarnessModel(run).generate("the layer", {"max_gen_toks": 3, "until": []})}]
    generated = write_task(
        tmp_path,
        "saying",
        said,
        output_type="generate_until",
        doc_to_text="{{q}}",
        doc_to_target="{{a}}",
        generation_kwargs={"until": ["\n\n\n"], "max_gen_toks": 3, "do_sample": False},
        metric_list=[{"metric": "exact_match"}],
    )
    tasks = Tasks([str(choice), str(rolling), str(generated)], None, None)
    found = tasks.evaluate(run, lambda *_: None)
    assert found["truncated"] == 0
    # The two answers are right in turn, so that whichever the model prefers is right half of the time.
    assert found["tasks"]["deeper"]["acc"]["value"] == 0.5
    bits = -sum(HarnessModel(run).loglikelihood_rolling([request("", row["text"]) for row in texts]))
    size = sum(len(row["text"]) for row in texts)
    assert found["tasks"]["rolling"]["bits_per_byte"]["value"] == pytest.approx(bits / size / 0.6931471805599453)
    assert found["tasks"]["saying"]["exact_match"]["value"] == 1.0
    assert any(line.split()[:3] == ["deeper", "acc", "0.5000"] for line in tasks.table(found))
    assert tasks.metrics(found)["deeper, acc"] == 0.5
    assert "git" not in capfd.readouterr().err


def test_numbers_are_taken_with_their_standard_errors_and_filters():
    entry = {"alias": "t", "acc,none": 0.5, "acc_stderr,none": 0.1, "em,strict": 1, "em_stderr,strict": "N/A"}
    assert numbers(entry) == {
        "acc": {"value": 0.5, "standard_error": 0.1},
        "em (strict)": {"value": 1.0, "standard_error": None},
    }


def test_a_task_that_is_not_there_is_one_line():
    with pytest.raises(ConfigError, match="--tasks arc_esy: lm-evaluation-harness has no such task; did you mean"):
        Tasks(["arc_esy"], None, None)
    with pytest.raises(ConfigError, match=r"--tasks nothing\.yaml: no such file"):
        Tasks(["nothing.yaml"], None, None)


def test_a_task_file_that_cannot_be_loaded_is_one_line_that_names_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    lost = write_task(tmp_path, "lost", [], output_type="multiple_choice", doc_to_text="{{q}}")
    (tmp_path / "lost.jsonl").unlink()
    with pytest.raises(ConfigError, match=rf"--tasks {lost}: lm-evaluation-harness cannot load it: ") as refused:
        Tasks([str(lost)], None, None)
    assert "\n" not in str(refused.value)
