"""A run as a Hugging Face directory, and back."""

import json
import shutil
import sys

import pytest
import torch
import training
import yaml
from commands import answer, refusal
from fabricated import plan_of, prereg_of
from transformers import AutoModelForCausalLM, AutoTokenizer

from depthroute import runs
from depthroute.interop.export import to_hf
from depthroute.study import seal
from depthroute.train.trained import load

PROBES = ("inspect", "intervene")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    training.write_texts(folder)
    training.trained(folder, "run")
    return folder


@pytest.fixture(scope="module")
def exported(folder):
    to_hf(str(folder / "run"), str(folder / "hf"))
    return folder / "hf"


def test_an_exported_model_is_the_runs_model_and_tokenizer(folder, exported):
    ours, tokenizer = load(folder / "run")
    theirs = AutoModelForCausalLM.from_pretrained(exported, dtype="auto")
    for name, tensor in ours.state_dict().items():
        assert torch.equal(theirs.model.state_dict()[name], tensor)
    words = AutoTokenizer.from_pretrained(exported)
    text = "the layer reads é\n  twice"
    assert words(text)["input_ids"] == tokenizer.encode(text)
    assert words.decode(tokenizer.encode(text)) == text
    assert (words.eos_token_id, words.pad_token_id, words.padding_side) == (tokenizer.end, tokenizer.end, "left")
    assert theirs.generation_config.eos_token_id == tokenizer.end


def test_back_it_is_the_run_that_was_exported(folder, exported, capsys):
    told = answer(capsys, "export", exported, "--to", "run", folder / "back")
    assert told.out == f"{folder / 'back'}: the run that was exported\n", told.err
    assert runs.finished(folder / "back")
    for file in ("model/model.safetensors", "model/config.json", "manifest.json", "metrics.jsonl", "tokenizer.json"):
        assert (folder / "back" / file).read_bytes() == (folder / "run" / file).read_bytes(), file


def test_a_model_that_was_trained_further_comes_back_as_an_import_that_claims_nothing(exported, capsys, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(exported, dtype="auto")
    with torch.no_grad():
        next(model.parameters()).add_(1)
    model.save_pretrained(tmp_path / "tuned")
    AutoTokenizer.from_pretrained(exported).save_pretrained(tmp_path / "tuned")
    told = answer(capsys, "export", tmp_path / "tuned", "--to", "run", tmp_path / "run")
    assert "an imported model" in told.out, told.err
    assert runs.manifest(tmp_path / "run")["imported"] == "tuned"
    assert not (tmp_path / "run" / "config.yaml").exists()
    ours, _ = load(str(tmp_path / "run"))
    assert torch.equal(next(ours.parameters()), next(model.parameters()))
    assert answer(capsys, "generate", tmp_path / "run", "--prompt", "the", "--max-tokens", 3).code == 0
    assert "was imported from 'tuned'" in refusal(capsys, "export", tmp_path / "run", "--to", "hf", tmp_path / "hf")
    (tmp_path / "a.txt").write_text("a layer reads")
    for command, words in (
        ("eval", "long its windows were; give --length"),
        *((one, "it was trained") for one in PROBES),
    ):
        told = refusal(capsys, command, tmp_path / "run", "--text", tmp_path / "a.txt")
        assert f"was imported, so nothing says how {words}" in told
    evaluation = ("eval", tmp_path / "run", "--length", 16, "--json", "--text", tmp_path / "a.txt")
    assert json.loads(answer(capsys, *evaluation).out)["length"] == 16


def test_the_card_says_what_the_run_says_of_itself(folder, exported):
    text = (exported / "README.md").read_text()
    head = yaml.safe_load(text.split("---")[1])
    assert head["pipeline_tag"] == "text-generation"
    manifest, (last,) = runs.manifest(folder / "run"), runs.final_evaluation(folder / "run").values()
    for said in (
        f"{manifest['parameters']:,} parameters",
        "sources: {blocks: 2}",
        "routes: qk_v",
        f"config `{manifest['config_digest'][:16]}`",
        f"data `{manifest['data_digest'][:16]}`",
        f"| validation | {last['nll']:.4f} | {last['bits_per_byte']:.4f} | {last['tokens_evaluated']:,} |",
        f"torch {manifest['versions']['torch']}",
    ):
        assert said in text, said


def test_the_card_of_a_studys_run_gives_its_question_arm_and_plan(folder, capsys, tmp_path):
    place = tmp_path / "study/runs/rd/3"
    shutil.copytree(folder / "run", place)
    plan = prereg_of(plan_of(["prenorm", "rd"], [3, 4]), [], question="Do roles help?", date="2026-01-02 03:04")
    seal.write(tmp_path / "study" / seal.PREREG, plan)
    told = answer(capsys, "export", place, "--to", "hf", tmp_path / "hf")
    assert told.out == f"{tmp_path / 'hf'}: a Hugging Face model with its tokenizer; README.md says how to load it\n"
    text = (tmp_path / "hf/README.md").read_text()
    assert "# rd, seed 3" in text
    assert "Question: Do roles help?" in text
    assert f"fixed on 2026-01-02 03:04 UTC before the first run (digest `{plan['digest'][:16]}`)" in text
    assert "The study has no results yet." in text


def test_what_cannot_be_exported_is_one_line_and_nothing_is_written(folder, exported, capsys, tmp_path):
    foreign, broken = tmp_path / "foreign", tmp_path / "broken"
    foreign.mkdir()
    (foreign / "config.json").write_text('{"model_type": "llama"}')
    shutil.copytree(exported, broken)
    (broken / "model.safetensors").write_bytes(b"not safetensors")
    target = tmp_path / "target"
    for arguments, message in [
        ((folder / "run", "--to", "hf", exported), "exists already; choose another directory"),
        ((folder / "data", "--to", "hf", target), "is not a run directory"),
        ((tmp_path / "nothing", "--to", "run", target), "no such directory"),
        ((exported, "--to", "hf", target), f"make it a run first: depthroute export {exported} --to run DIR"),
        ((folder / "run", "--to", "run", target), "is a run already; --to run takes a Hugging Face directory"),
        ((folder, "--to", "run", target), "no Hugging Face model (config.json is missing)"),
        ((foreign, "--to", "run", target), "a model of type 'llama'; only depthroute models become runs"),
        ((broken, "--to", "run", target), "cannot be read"),
    ]:
        assert message in refusal(capsys, "export", *arguments)
    assert not target.exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_without_transformers_one_line_says_what_to_install(folder, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "transformers", None)
    for name in [name for name in sys.modules if name.startswith("depthroute.interop")]:
        monkeypatch.delitem(sys.modules, name)
    line = refusal(capsys, "export", folder / "run", "--to", "hf", tmp_path / "hf")
    assert line == "error: Hugging Face models need transformers: pip install 'depthroute[hf]'\n"
