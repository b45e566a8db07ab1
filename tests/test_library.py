"""What `import depthroute as dr` gives beyond the layer: models by preset, tokens in and out, runs by their paths."""

import pytest
import torch
import training
import yaml

import depthroute as dr
from depthroute import config, runs
from depthroute.train.loop import train

SHAPE = {"vocab": 11, "width": 16, "layers": 2, "heads": 2, "hidden": 24}


def small() -> dr.Transformer:
    raw = dr.expand_model({**SHAPE, "residual": {"preset": "rd", "blocks": 2}})
    return dr.Transformer(dr.ModelConfig.parse(raw)).initialise(seed=1)


def test_a_preset_a_model_and_a_continuation_in_five_lines():
    model = small()
    tokens = list(dr.generate(model, [1, 2, 3], 5, dr.Sampling(temperature=0)))
    assert len(tokens) == 5
    assert set(tokens) <= set(range(11))
    assert len(list(dr.generate(model, torch.tensor([1, 2, 3]), 4))) == 4


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            {"residual": {"preset": "rd"}},
            "residual: .* depthroute.expand_model puts such a mapping in a preset's place",
        ),
        ({"residual": "rd"}, "residual: .* depthroute.expand_model puts such a mapping in a preset's place"),
        ({"residual": {"name": "additive"}, "size": "tiny"}, "size: stands for several keys; depthroute.expand_model"),
    ],
    ids=["preset", "word", "size"],
)
def test_shorthands_name_what_replaces_them(raw, message):
    with pytest.raises(dr.ConfigError, match=message):
        dr.ModelConfig.parse(SHAPE | raw)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.tensor([1, 2]), r"tokens: torch.int64 of shape \[2\]; give ids, \[batch, token\]"),
        (torch.ones(1, 2), r"tokens: torch.float32 of shape \[1, 2\]; give ids, \[batch, token\]"),
        (torch.tensor([[1, 11]]), "tokens: ids beyond the vocabulary, 11"),
        (torch.tensor([[-1]]), "tokens: ids beyond the vocabulary, 11"),
    ],
    ids=["one row", "numbers", "beyond", "negative"],
)
def test_tokens_that_are_no_ids_are_refused_by_name(as_a_user, tokens, message):
    with pytest.raises(dr.ArgumentError, match=message):
        small()(tokens)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"reads": "two-phase"}, r"reads: 'two-phase' \(did you mean 'two_phase'\?"),
        ({"recompute": True}, r"recompute: True \(choices: none, layer, block\)"),
    ],
    ids=["reads", "recompute"],
)
def test_a_way_to_compute_that_there_is_not_is_refused(as_a_user, how, message):
    with pytest.raises(dr.ArgumentError, match=message):
        dr.Transformer(small().config, **how)


@pytest.mark.usefixtures("as_a_user")
def test_what_is_asked_of_a_model_is_refused_by_name():
    with pytest.raises(dr.ArgumentError, match="last: 0; ask for the logits of at least 1 token"):
        small()(torch.tensor([[1, 2]]), last=0)
    with pytest.raises(dr.ConfigError, match=r"^width: missing"):
        dr.ModelConfig.parse({})
    with pytest.raises(dr.ArgumentError, match="device: nowhere cannot be used: "):
        dr.load("runs/none", "nowhere")
    read = dr.attend(torch.zeros(1, 4), None, [torch.ones(2, 4)], eps=1e-6)
    with pytest.raises(dr.ArgumentError, match="second: a tuple; give what attend returned"):
        dr.merge(read, tuple(read))
    with pytest.raises(dr.ArgumentError, match="gain: a list; give a tensor"):
        dr.attend(torch.zeros(1, 4), None, [torch.ones(2, 4)], eps=1e-6, gain=[1.0] * 4)


def test_paths_may_be_text(tmp_path):
    training.write_texts(tmp_path)
    (tmp_path / "run.yaml").write_text(config.dump(training.tiny(tmp_path)))
    train(config.load(str(tmp_path / "run.yaml")), str(tmp_path / "run"), str(tmp_path / "data"))
    model, tokenizer = dr.load(str(tmp_path / "run"), "cpu")
    assert model.config.vocab == tokenizer.vocab
    runs.check_run(str(tmp_path / "run"))
    assert runs.finished(str(tmp_path / "run"))
    assert runs.metrics(str(tmp_path / "run"))[-1]["model"] == runs.model_sums(tmp_path / "run")
    assert runs.manifest(str(tmp_path / "run"))["vocab"] == tokenizer.vocab
    assert yaml.safe_load((tmp_path / "run/config.yaml").read_text())["tokens"] == training.STEPS * 64
