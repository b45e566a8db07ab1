"""The model behind Hugging Face's interface is the model: same weights, same logits, same training."""

import json

import networks
import pytest
import torch
import training
import transformers
from hugging import NEW, SUBSET, SYSTEMS, generated, wrapped
from torch.testing import assert_close
from torch.utils.data import Dataset as TorchDataset
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, StaticCache, Trainer, TrainingArguments

from depthroute import runs
from depthroute.data.batches import Batches
from depthroute.data.shards import Dataset
from depthroute.errors import ArgumentError, ConfigError, RunError
from depthroute.interop.huggingface import CACHE, DepthRouteConfig, DepthRouteForCausalLM
from depthroute.model.transformer import Transformer
from depthroute.train import optim
from depthroute.train.schedule import factor
from depthroute.train.start import build_model

# Said of a method that transformers 5.22 renamed, and of a progress bar.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def model():
    return wrapped()


@pytest.fixture(autouse=True)
def quiet():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@pytest.fixture(scope="module")
def greedy(model):
    """The likeliest continuation by whole passes of the Transformer itself."""
    tokens = networks.tokens()
    with torch.no_grad():
        for _ in range(NEW):
            tokens = torch.cat([tokens, model.model(tokens)[:, -1:].argmax(-1)], dim=1)
    return tokens[:, -NEW:]


@pytest.mark.parametrize("residual", SYSTEMS.values(), ids=SYSTEMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_saved_and_loaded_is_the_same_model_to_the_bit(tmp_path, residual, dtype):
    saved = wrapped(residual, tied=residual is SUBSET).to(dtype)
    saved.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert isinstance(loaded, DepthRouteForCausalLM)
    before, after = saved.state_dict(), loaded.state_dict()
    assert list(before) == list(after)
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype
        assert torch.equal(after[name], tensor), name
    assert ("model.residual.coordinates" in after) == (residual is SUBSET)
    assert loaded.config.parsed == saved.model.config
    assert AutoConfig.from_pretrained(tmp_path).parsed == saved.model.config
    if dtype == torch.float64:  # equal weights at other addresses may be multiplied in another order
        tokens = networks.tokens()
        assert_close(loaded(tokens).logits, saved.model(tokens), rtol=0, atol=1e-12)


def test_a_new_model_has_the_weights_that_its_seed_gives():
    torch.manual_seed(7)
    config = DepthRouteConfig(model=networks.config(SUBSET).model_dump(mode="json"))
    for model in (DepthRouteForCausalLM(config), AutoModelForCausalLM.from_config(config)):
        for name, tensor in Transformer(networks.config(SUBSET)).initialise(7).state_dict().items():
            assert torch.equal(model.model.state_dict()[name], tensor)


def test_a_weight_that_is_missing_or_unknown_is_an_error(tmp_path, model):
    from safetensors.torch import load_file, save_file

    model.save_pretrained(tmp_path)
    whole = load_file(tmp_path / "model.safetensors")
    for changed, message in [
        ({key: value for key, value in whole.items() if "norm" not in key and "q_proj" not in key}, "missing keys: "),
        (whole | {"model.surplus": torch.zeros(2)}, r"unexpected keys: model\.surplus"),
    ]:
        save_file(changed, tmp_path / "model.safetensors", {"format": "pt"})
        with pytest.raises(RunError, match=message):
            DepthRouteForCausalLM.from_pretrained(tmp_path)


def test_a_config_that_is_none_is_an_error():
    with pytest.raises(ConfigError, match=r"model\.widht: unknown key"):
        DepthRouteConfig(model=networks.config(SUBSET).model_dump(mode="json") | {"widht": 3})
    with pytest.raises(ConfigError, match="model: missing"):
        DepthRouteForCausalLM(DepthRouteConfig())


@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}, {"use_cache": False}], ids=str)
def test_greedy_generation_is_the_uncached_forward_token_by_token(model, greedy, options):
    assert torch.equal(generated(model, networks.tokens(), **options), greedy)


@pytest.mark.parametrize(
    "options",
    [{"do_sample": True, "temperature": 0.7}, {"num_beams": 3}, {"num_beams": 2, "do_sample": True}],
    ids=["sampling", "beam", "beam sampling"],
)
@pytest.mark.parametrize("cache", [{}, {"cache_implementation": "static"}], ids=["dynamic", "static"])
def test_sampling_and_beams_with_a_cache_are_those_without(model, options, cache):
    found = []
    for given in ({"use_cache": False}, cache):
        torch.manual_seed(0)
        found.append(generated(model, networks.tokens(), **options, **given))
    assert torch.equal(*found)


@pytest.mark.parametrize("cache", [{}, {"cache_implementation": "static"}, {"use_cache": False}], ids=str)
def test_left_padding_changes_no_generated_token(model, greedy, cache):
    tokens, ones = networks.tokens(), torch.ones(2, 5, dtype=torch.long)
    padded, mask = torch.nn.functional.pad(tokens, (3, 0)), torch.nn.functional.pad(ones, (3, 0))
    assert torch.equal(generated(model, padded, mask, **cache), greedy)
    # Rows of unequal length: the second has lost its first two tokens.
    mask[1, :5] = 0
    together = generated(model, padded, mask, **cache)
    assert torch.equal(together[0], greedy[0])
    assert torch.equal(together[1], generated(model, tokens[1:, 2:])[0])


@pytest.mark.parametrize("name", ["past_key_values", "cache"])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_both_names_of_the_cache_are_heard(model, name, kind):
    tokens = networks.tokens()
    kept = DynamicCache() if kind == "dynamic" else StaticCache(config=model.config, max_cache_len=9)
    whole = model(tokens, use_cache=False).logits
    first = model(tokens[:, :3], **{name: kept}).logits
    then = model(tokens[:, 3:], cache_position=torch.arange(3, 5), **{name: kept}).logits
    assert_close(torch.cat([first, then], dim=1), whole, rtol=0, atol=1e-12)
    assert_close(model(tokens[:, :3], **{CACHE: None}).logits, first, rtol=0, atol=1e-12)


def test_a_cache_that_is_deaf_would_be_seen(model):
    tokens = networks.tokens()
    alone = model(tokens[:, 3:], use_cache=False).logits
    assert not torch.allclose(alone, model(tokens, use_cache=False).logits[:, 3:])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"past_keys": DynamicCache()}, TypeError, "past_keys"),
        ({"cache": DynamicCache(), "past_key_values": DynamicCache()}, ArgumentError, "two names of one argument"),
        ({"output_attentions": True}, ArgumentError, "output_attentions: this model does not offer it"),
        ({"output_hidden_states": True}, ArgumentError, "output_hidden_states: this model does not offer it"),
        ({"return_dict": False}, ArgumentError, "return_dict=False"),
        ({"inputs_embeds": torch.zeros(2, 5, 8)}, ArgumentError, "inputs_embeds: this model does not offer it"),
        ({"attention_mask": torch.ones(2, 4)}, ArgumentError, r"attention_mask: .*give \[batch, 5\]"),
        ({"attention_mask": torch.zeros(2, 1, 5, 5)}, ArgumentError, r"or bool \[batch, 1, 5, 5\]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.usefixtures("as_a_user")
def test_nothing_unknown_is_swallowed(model, given, error, message):
    with pytest.raises(error, match=message):
        model(networks.tokens(), **given)


def test_a_row_is_one_document_to_a_model_that_masks_by_document():
    model, tokens = wrapped(document_mask=True), networks.tokens()
    expected = model.model(tokens, torch.zeros_like(tokens))
    for options in ({"use_cache": False}, {"use_cache": True}):
        assert_close(model(tokens, **options).logits, expected, rtol=0, atol=1e-12)


def test_the_loss_is_the_mean_nll_of_the_labels_that_count(model):
    tokens, labels = networks.tokens(), networks.tokens()
    labels[0, :3] = -100
    nll = -model.model(tokens)[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
    counted = torch.cat([nll[0, 2:], nll[1]])
    assert model(tokens, labels=labels).loss.item() == pytest.approx(counted.mean().item(), rel=1e-6)
    divided = model(tokens, labels=labels, num_items_in_batch=torch.tensor(100)).loss.item()
    assert divided == pytest.approx(counted.sum().item() / 100, rel=1e-6)


def test_gradient_checkpointing_is_the_transformers_own(model):
    assert model.model.recompute == "none"
    model.gradient_checkpointing_enable()
    assert (model.model.recompute, model.gradient_checkpointing) == ("layer", True)
    with pytest.raises(ArgumentError, match="use_cache: backward would fill the cache again"):
        model.train()(networks.tokens(), use_cache=True)
    model.eval().gradient_checkpointing_disable()
    assert (model.model.recompute, model.gradient_checkpointing) == ("none", False)


def test_gradient_checkpointing_keeps_fewer_bytes_and_the_same_gradients():
    kept, gradients = [], []
    for checkpoint in (False, True):
        model, seen = wrapped().train(), {}
        if checkpoint:
            model.gradient_checkpointing_enable()

        def note(tensor, seen=seen):
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = model(networks.tokens(4, 64), labels=networks.tokens(4, 64)).loss
        loss.backward()
        kept.append(sum(seen.values()))
        gradients.append([parameter.grad for parameter in model.parameters()])
    for plain, again in zip(*gradients, strict=True):
        assert torch.equal(plain, again)
    assert kept[1] < kept[0] / 2


@pytest.mark.parametrize("place", ["cpu", "auto", {"": "cpu"}], ids=str)
def test_a_device_map_puts_the_whole_model_on_one_device(tmp_path, model, place):
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, device_map=place, dtype=torch.float64)
    assert {parameter.device for parameter in loaded.parameters()} == {torch.device("cpu")}
    assert_close(loaded(networks.tokens()).logits, model(networks.tokens()).logits, rtol=0, atol=1e-12)


class Windows(TorchDataset):
    """Every training window in the order of our batches, each with its next token."""

    def __init__(self, batches, count):
        rows = [batches[number] for number in range(count)]
        self.rows = [
            torch.tensor([*tokens, targets[-1]])
            for b in rows
            for tokens, targets in zip(b.tokens, b.targets, strict=True)
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        labels = self.rows[number].clone()
        labels[0] = -100  # nothing predicts it; transformers 4 counts it all the same
        return {"input_ids": self.rows[number], "labels": labels}


class InOrder(Trainer):
    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def test_trainer_follows_our_own_loops_loss_curve(tmp_path):
    training.write_texts(tmp_path)
    changes = {
        "z_loss": 0.0,
        "optimizer": {"matrices": {"method": "adamw"}},
        "evaluation": {"tokens": 512},
        "tokens": 12 * 64,
    }
    run = training.trained(tmp_path, "ours", **changes)
    ours = [event["nll"] for event in runs.metrics(run) if event["event"] == "step"]
    config = training.tiny(tmp_path, **changes)
    data = Dataset.open(next((tmp_path / "data").iterdir()))
    network = build_model(config, data.vocab, torch.device("cpu"))
    model = DepthRouteForCausalLM.of(network)
    (optimizer,) = optim.optimizers(network, config.optimizer)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: factor(config.schedule, done + 1, config.steps)
    )
    batches = Batches(data.parts["train"], length=config.length, batch=config.batch, seed=config.seed)
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "theirs"), max_steps=config.steps, per_device_train_batch_size=config.batch,
        logging_steps=1, max_grad_norm=config.clip, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = InOrder(model, arguments, train_dataset=Windows(batches, config.steps), optimizers=(optimizer, schedule))
    trainer.train()
    theirs = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(theirs) == len(ours) == 12
    assert ours[-1] < ours[0] - 0.5
    # The Trainer rounds what it logs to four decimals.
    assert theirs == pytest.approx(ours, abs=2e-4)
    trained = training.weights(run)
    for name, parameter in network.named_parameters():
        found = torch.frombuffer(bytearray(trained[name]), dtype=torch.float32).view_as(parameter)
        assert_close(parameter.detach(), found, rtol=0, atol=1e-4)


def test_exported_json_is_plain(tmp_path, model):
    model.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["model_type"] == "depthroute"
    assert stored["model"] == model.model.config.model_dump(mode="json")
