"""Evaluation on texts: what is counted, how sure it is, and what a person sees."""

import importlib
import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import VOCAB, attnres, moved
from training import trained, write_texts

from depthroute.data import Tokenizer
from depthroute.data.tokenizer import byte_json
from depthroute.errors import ConfigError, DataError
from depthroute.evaluation.score import Scorer
from depthroute.evaluation.text import Texts, domains, exponential, ratio
from depthroute.evaluation.trained import Trained, opened
from depthroute.study.statistics import t_interval
from studies import depthroute

END = 0
Documents = st.lists(st.lists(st.integers(1, VOCAB - 1), max_size=9), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("eval")
    write_texts(place)
    trained(place, "run", evaluation={"tokens": 512})
    return place


@settings(max_examples=15, deadline=None)
@given(documents=Documents, length=st.integers(1, 12), batch=st.integers(1, 5))
def test_every_token_of_a_document_is_judged_once_however_windows_are_batched(documents, length, batch):
    model = moved(attnres(routes="qk_v"))
    found = Scorer(model, END, length, batch).nats(documents)
    for ids, nats in zip(documents, found, strict=True):
        expected = 0.0
        for position, wanted in enumerate(ids):
            start = position // length * length
            context = [END, *ids][start : position + 1]
            expected -= model(torch.tensor([context]))[0, -1].log_softmax(-1)[wanted].item()
        assert nats == pytest.approx(expected, rel=1e-5)


def test_under_a_document_mask_all_but_the_first_token_are_judged_as_in_the_middle_of_a_training_window():
    model = moved(attnres(), document_mask=True)
    first, second = [3, 1, 4], [1, 5, 9, 2, 6]
    stream = torch.tensor([[*first, END, *second, END]])
    logits = model(stream, torch.tensor([[0] * 4 + [1] * 6]))[0].log_softmax(-1)
    expected = [-logits[3 + number, wanted].item() for number, wanted in enumerate(second)]
    scorer = Scorer(model, END, 16, 2)
    (scores,) = scorer.score(scorer.windows(0, second))
    # The first alone is read after the end of text, which in training has seen the document that it ends.
    assert scores.nll[1:] == pytest.approx(expected[1:], rel=1e-6)
    assert scores.nll[0] != pytest.approx(expected[0], rel=1e-3)


def test_the_ratio_of_documents_of_equal_length_has_the_t_interval_of_their_means():
    nats = np.array([30.0, 33.0, 36.0, 31.0])
    found = ratio(nats, np.full(4, 10.0))
    assert found.value == pytest.approx(3.25, rel=1e-14)
    assert (found.low, found.high) == pytest.approx(t_interval(list(nats / 10), 0.95), rel=1e-12)


def test_the_interval_over_documents_covers_the_truth_as_often_as_it_says():
    draw = np.random.default_rng(0)
    tokens = draw.integers(20, 200, (4000, 30)).astype(float)
    # Longer documents are easier, and a document's own level varies.
    nats = tokens * (4.0 - 0.005 * tokens + 0.3 * draw.standard_normal(tokens.shape))
    lengths = np.arange(20, 200)
    truth = (lengths * (4.0 - 0.005 * lengths)).sum() / lengths.sum()
    found = [ratio(n, t) for n, t in zip(nats, tokens, strict=True)]
    covered = np.mean([one.low <= truth <= one.high for one in found])
    assert covered == pytest.approx(0.95, abs=0.015)


def test_the_perplexity_is_the_exponential_of_the_nll_with_its_ends_and_none_that_no_float_holds():
    found = exponential(ratio(np.array([10.0, 30.0]), np.array([10.0, 10.0])))
    assert found.value == pytest.approx(math.e**2)
    low, high = t_interval([1.0, 3.0], 0.95)
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert exponential(ratio(np.array([10.0, 1100.0]), np.array([10.0, 10.0]))).high is None


def test_a_run_is_evaluated_on_files_and_named_domains(folder, tmp_path):
    rows = ["the layer reads the block", "", "a route mixes depth é"]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"body": row}) + "\n" for row in rows))
    words = ["a.txt", "b.txt", "--text", "rows=x.jsonl"]
    shutil.copy(folder / "1.txt", tmp_path / "a.txt")
    shutil.copy(folder / "2.txt", tmp_path / "b.txt")
    command = ["eval", folder / "run", "--field", "body", "--text", *words]
    found = json.loads(depthroute(*command, "--json", cwd=tmp_path).stdout)
    by_name = {domain["domain"]: domain for domain in found["domains"]}
    assert set(by_name) == {"a.txt", "b.txt", "rows"}
    assert (found["length"], found["precision"], found["device"], found["level"]) == (16, "fp32", "cpu", 0.95)

    with opened(folder / "run") as run:
        ids = {name: run.tokenizer.encode((tmp_path / name).read_text()) for name in ("a.txt", "b.txt")}
        nats = dict(zip(ids, run.scorer.nats(ids.values()), strict=True))
    for name in ids:
        domain = by_name[name]
        assert (domain["documents"], domain["tokens"], domain["bytes"]) == (1, len(ids[name]), len(ids[name]))
        assert domain["nll"] == {"value": pytest.approx(nats[name] / len(ids[name])), "low": None, "high": None}
        # A byte is a token here, so that bits a byte are nats a token in another unit.
        assert domain["bits_per_byte"]["value"] == pytest.approx(domain["nll"]["value"] / math.log(2))
        assert domain["perplexity"]["value"] == pytest.approx(math.exp(domain["nll"]["value"]))
    assert (by_name["rows"]["documents"], by_name["rows"]["empty"]) == (2, 1)
    assert by_name["rows"]["bytes"] == len("".join(rows).encode())
    for key in ("nll", "bits_per_byte", "perplexity"):
        assert by_name["rows"][key]["low"] < by_name["rows"][key]["value"] < by_name["rows"][key]["high"]

    table = depthroute(*command, cwd=tmp_path).stdout
    assert f"{by_name['rows']['nll']['value']:.4f}" in table
    assert "95 % t intervals over documents; one document has none" in table
    assert "rows: 1 empty documents left out" in table


def test_files_under_one_name_are_one_domain_and_each_a_document(folder):
    with opened(folder / "run") as run:
        together = Texts(domains([f"all={folder}/1.txt", f"all={folder}/2.txt"], "text"))
        (both,) = together.evaluate(run, lambda *_: None)["domains"]
        apart = Texts(domains([f"{folder}/1.txt", f"{folder}/2.txt"], "text")).evaluate(run, lambda *_: None)["domains"]
    assert both["documents"] == 2
    total = sum(one["nll"]["value"] * one["tokens"] for one in apart)
    assert both["nll"]["value"] == pytest.approx(total / both["tokens"], rel=1e-6)
    assert [file["name"] for file in both["files"]] == ["1.txt", "2.txt"]


def test_one_long_text_file_is_cut_into_documents_at_lines(tmp_path):
    (tmp_path / "long.txt").write_text("a line of text, again and again\n" * 1000)
    (domain,) = domains([f"{tmp_path}/long.txt"], "text")
    assert domain.corpus.split == "document"
    model = moved(attnres(), vocab=257)
    tokenizer = Tokenizer(byte_json(), "bytes")
    run = Trained(Scorer(model, tokenizer.end, 512, 8), tokenizer, {})
    assert Texts([domain]).evaluate(run, lambda *_: None)["domains"][0]["documents"] == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --text FILE... or --tasks TASK, one of both"),
        (["--text", "nothing.txt"], "'nothing.txt': no regular file matches"),
        (["--text", "=a.txt"], "--text =a.txt: write FILE or NAME=FILE"),
        (["--text", "a.txt", "--text", "a.txt"], "--text a.txt: is given twice"),
        (["a.txt"], "a.txt: what is it? texts follow --text, tasks follow --tasks"),
        (["--text", "a.txt", "--limit", "3"], "--shots and --limit go with --tasks"),
        (["--text", "empty.txt"], "empty.txt: has no document that holds text (0 empty ones)"),
    ],
    ids=str,
)
def test_a_wrong_word_is_one_line_that_says_what_to_do(folder, tmp_path, monkeypatch, arguments, message):
    (tmp_path / "a.txt").write_text("the layer reads\n")
    (tmp_path / "empty.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    from depthroute.cli.evaluate import evaluate

    def parsed(words):
        given = {"more": [], "text": [], "limit": None}
        words = iter(words)
        for word in words:
            if word == "--limit":
                given["limit"] = int(next(words))
            else:
                given["text" if word == "--text" else "more"].append(next(words) if word == "--text" else word)
        return given

    with pytest.raises((ConfigError, DataError)) as refused:
        evaluate(folder / "run", **parsed(arguments), tasks=None, field="text", shots=None)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_tasks_without_the_harness_are_one_line_that_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", None)
    monkeypatch.delitem(sys.modules, "depthroute.evaluation.harness", raising=False)
    with pytest.raises(ConfigError, match=r"--tasks needs lm-evaluation-harness: pip install 'depthroute\[eval\]'"):
        importlib.import_module("depthroute.evaluation.harness")


def test_a_directory_that_is_no_run_or_lacks_its_tokenizer_is_one_line(folder, tmp_path):
    (tmp_path / "a.txt").write_text("text")
    wrong = depthroute("eval", tmp_path, "--text", "a.txt", cwd=tmp_path)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "is neither a run nor a study" in wrong.stderr
    shutil.copytree(folder / "run", tmp_path / "run")
    (tmp_path / "run/tokenizer.json").unlink()
    lost = depthroute("eval", "run", "--text", "a.txt", cwd=tmp_path)
    assert (lost.returncode, lost.stderr.count("\n")) == (2, 1)
    assert "run/tokenizer.json: missing; copy the tokenizer.json of the data set" in lost.stderr
