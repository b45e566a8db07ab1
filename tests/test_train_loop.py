import json
import math
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import training

from depthroute import config, runs
from depthroute.data.batches import Batches, evaluation_batches
from depthroute.data.building import build
from depthroute.data.shards import Dataset
from depthroute.errors import ConfigError, DataError, RunError
from depthroute.model.cost import cost
from depthroute.model.transformer import ModelConfig, Transformer
from depthroute.presets import PRESETS
from depthroute.train.device import computes_bf16, enough_memory
from depthroute.train.evaluate import evaluation_steps
from depthroute.train.losses import losses, micro_batches


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("training")
    training.write_texts(folder)
    return folder


@pytest.fixture(scope="module")
def run(folder):
    """An unbroken run."""
    return training.trained(folder, "unbroken")


@contextmanager
def tokens_seen():
    """The tokens of every forward pass inside the `with`: in training, and in evaluation."""
    seen = {True: [], False: []}

    def note(module, inputs):
        if isinstance(module, Transformer):
            seen[torch.is_grad_enabled()].append(inputs[0].numpy().tobytes())

    handle = torch.nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield seen
    finally:
        handle.remove()


def events(run, kind):
    return [event for event in runs.metrics(run) if event["event"] == kind]


def loaded(run):
    model = Transformer(ModelConfig.parse(json.loads((run / "model/config.json").read_text())))
    with torch.no_grad():
        for name, array in training.load_file(run / "model/model.safetensors").items():
            model.get_parameter(name).copy_(torch.from_numpy(array))
    return model


def test_a_run_learns_and_leaves_what_the_contract_says(run):
    assert runs.finished(run)
    assert {path.name for path in run.iterdir() if path.name[0] != "."} == {
        *("config.yaml", "tokenizer.json", "manifest.json", "metrics.jsonl", "checkpoints", "model")
    }
    steps = events(run, "step")
    assert [event["step"] for event in steps] == list(range(1, training.STEPS + 1))
    assert [event["tokens"] for event in steps] == [64 * event["step"] for event in steps]
    assert steps[0]["nll"] == pytest.approx(math.log(257), abs=0.1)
    assert steps[-1]["nll"] < steps[0]["nll"] - 1
    assert runs.metrics(run)[-1] == {
        "event": "end", "step": 24, "tokens": 1536, "seconds": steps[-1]["seconds"], "model": runs.model_sums(run)
    }  # fmt: skip


def test_the_manifest_says_what_ran(run, folder):
    manifest = runs.manifest(run)
    stored = config.load(run / "config.yaml")
    assert stored == training.tiny(folder)
    assert manifest["config_digest"] == config.digest(stored)
    assert manifest["impl"] == loaded(run).impl
    assert manifest["parameters"] == sum(p.numel() for p in loaded(run).parameters())
    assert manifest["cost"] == cost(loaded(run).config, stored.length, element=4, stages=1).plain()
    assert manifest["versions"]["torch"] == torch.__version__
    assert (manifest["device"], manifest["threads"], manifest["vocab"]) == ("cpu", 1, 257)
    data = Dataset.open(build(stored.data, folder / "data"))
    assert (manifest["data_digest"], manifest["tokenizer_digest"]) == (data.digest, data.tokenizer_digest)


def test_evaluation_is_pure_cross_entropy_in_nats_a_token_and_bits_a_byte(run, folder):
    evaluations = events(run, "evaluation")
    assert [(event["step"], event["held_out"]) for event in evaluations] == [
        (0, "validation"), (10, "validation"), (24, "validation")
    ]  # fmt: skip
    part = Dataset.open(build(training.tiny(folder).data, folder / "data")).parts["validation"]
    batches = list(evaluation_batches(part, length=16, batch=4, tokens=512))
    model, tokens, targets = loaded(run), *(np.concatenate([batch[i] for batch in batches]) for i in (0, 1))
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens)).double()
    nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten()).item()
    last = evaluations[-1]
    assert last["tokens_evaluated"] == targets.size == 512
    assert last["nll"] == pytest.approx(nll, abs=1e-5)
    assert last["bits_per_byte"] == pytest.approx(last["nll"] * part.tokens / part.bytes / math.log(2), rel=1e-12)


def test_the_z_loss_is_logged_apart_from_the_nll(folder):
    settings = {"tokens": 64 * 4, "evaluation": {}}
    with_z = events(training.trained(folder, "z", z_loss=0.01, **settings), "step")
    without = events(training.trained(folder, "no-z", z_loss=0.0, **settings), "step")
    assert with_z[0]["nll"] == without[0]["nll"]
    assert with_z[0]["z_loss"] == pytest.approx(0.01 * math.log(257) ** 2, rel=0.05)
    assert {event["z_loss"] for event in without} == {0.0}
    assert with_z[-1]["nll"] != without[-1]["nll"]


def test_accumulated_gradients_are_those_of_the_whole_batch(folder):
    config = training.tiny(folder)
    data = Dataset.open(build(config.data, folder / "data"))
    batch = Batches(data.parts["train"], length=16, batch=4, seed=0)[0]
    shape = config.model.model_copy(update={"vocab": data.vocab})
    gradients = []
    for parts in (1, 2, 4):
        model = Transformer(shape).initialise(0).double()
        for part in micro_batches(batch, parts, torch.device("cpu")):
            (sum(losses(model, part, 1e-3, "fp64")) / parts).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for whole, *others in zip(*gradients, strict=True):
        for other in others:
            torch.testing.assert_close(other, whole, rtol=1e-4, atol=1e-7)


def test_gradients_are_clipped_to_their_norm(folder):
    settings = {"tokens": 64 * 4, "evaluation": {}, "optimizer": {"matrices": {"method": "adamw"}, "eps": 1e3}}
    free = events(training.trained(folder, "free", clip=None, **settings), "step")
    clipped = events(training.trained(folder, "clipped", clip=1e-3, **settings), "step")
    assert free[0]["grad_norm"] == clipped[0]["grad_norm"] > 1e-3
    assert free[-1]["nll"] < clipped[-1]["nll"]


def test_a_batch_depends_on_the_seed_and_the_evaluation_does_not(folder):
    seen = []
    for seed in (1, 2):
        with tokens_seen() as tokens:
            training.trained(folder, f"seen-{seed}", seed=seed, tokens=4 * 64, evaluation={"tokens": 128})
        seen.append(tokens)
    assert seen[0][False] == seen[1][False]
    assert len(seen[0][True]) == 4
    assert not set(seen[0][True]) & set(seen[1][True])


def test_every_preset_trains_on_the_same_first_batches_at_equal_seeds_and_on_others_at_other_seeds(folder):
    def batches_seen(preset: str, seed: int) -> bytes:
        options = {"rank": 8} if PRESETS[preset].rank else {}
        model = {"width": 32, "layers": 2, "heads": 2, "hidden": 48, "residual": {"preset": preset, **options}}
        changes = {"tokens": 3 * 64, "schedule": {"warmup": 1}, "evaluation": {"tokens": 16}}
        with tokens_seen() as tokens:
            training.trained(folder, f"{preset}-{seed}", model=model, seed=seed, **changes)
        assert len(tokens[True]) == 3
        return b"".join(tokens[True])

    assert len({batches_seen(preset, seed=1) for preset in PRESETS}) == 1
    assert batches_seen("rd", seed=2) != batches_seen("prenorm", seed=3)


def test_every_held_out_set_is_evaluated_at_every_milestone_and_at_the_end(folder):
    (folder / "other.md").write_text("quite another text, about " + "nothing in particular and " * 40)
    data = training.tiny(folder).data.model_dump()
    data |= {"held_out": {"other": {"files": [str(folder / "other.md")], "validation": 1.0}}}
    run = training.trained(folder, "held-out", data=data, tokens=6 * 64, evaluation={"milestones": [0, 200]})
    judged = [(event["tokens"], event["held_out"]) for event in events(run, "evaluation")]
    assert judged == [(tokens, name) for tokens in (0, 256, 384) for name in ("validation", "other")]
    assert runs.final_evaluation(run).keys() == {"validation", "other"}


def test_evaluation_comes_at_the_first_step_that_reaches_a_milestone(folder):
    def steps(**evaluation):
        return sorted(evaluation_steps(training.tiny(folder, evaluation=evaluation)))

    assert steps(milestones=[0, 1, 64, 65, 1000]) == [0, 1, 2, 16, 24]
    assert steps(every=500) == [8, 16, 24]
    assert steps() == [24]


def test_documents_reach_a_model_that_masks_by_them(folder):
    model = {"width": 32, "layers": 2, "heads": 2, "hidden": 48, "residual": "prenorm"}
    settings = {"tokens": 512 * 4, "evaluation": {}, "length": 64, "batch": 8}
    masked = training.trained(folder, "masked", model=model | {"document_mask": True}, **settings)
    open_ = training.trained(folder, "unmasked", model=model, **settings)
    assert [e["nll"] for e in events(masked, "step")] != [e["nll"] for e in events(open_, "step")]


def test_bf16_trains_where_the_device_has_it_and_is_an_error_elsewhere(folder):
    settings = {"precision": "bf16", "tokens": 64 * 4, "evaluation": {}}
    if computes_bf16(torch.device("cpu")):
        run = training.trained(folder, "bf16", **settings)
        assert loaded(run).embed_tokens.weight.dtype == torch.float32
        assert events(run, "step")[-1]["nll"] < events(run, "step")[0]["nll"]
    else:
        with pytest.raises(ConfigError, match="precision: this cpu device has no bf16 arithmetic"):
            training.trained(folder, "bf16", **settings)


def test_bf16_autocast_keeps_the_loss_in_fp32(run, folder):
    data = Dataset.open(build(training.tiny(folder).data, folder / "data"))
    (batch,) = micro_batches(next(evaluation_batches(data.parts["train"], length=16, batch=4)), 1, torch.device("cpu"))
    low, _ = losses(loaded(run), batch, 0.0, "bf16")
    full, _ = losses(loaded(run), batch, 0.0, "fp32")
    assert low.dtype == torch.float32
    assert 0 < abs(low.item() - full.item()) < 0.05


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_an_error(folder):
    with pytest.raises(ConfigError, match="device: cuda is not available"):
        training.trained(folder, "cuda", device="cuda")


def test_a_vocabulary_smaller_than_the_tokenizers_is_an_error(folder):
    model = {"width": 32, "layers": 2, "heads": 2, "hidden": 48, "residual": "prenorm"}
    with pytest.raises(ConfigError, match=r"model.vocab: 256 is smaller than the tokenizer's 257"):
        training.trained(folder, "small-vocab", model=model | {"vocab": 256})
    larger = training.trained(folder, "large-vocab", model=model | {"vocab": 300}, tokens=64 * 4, evaluation={})
    assert runs.manifest(larger)["vocab"] == loaded(larger).config.vocab == 300


def test_a_held_out_part_too_short_to_evaluate_is_found_before_training(folder):
    short = folder / "short.md"
    short.write_text("short but not a single window of it")
    data = {
        **training.tiny(folder).data.model_dump(),
        "held_out": {"short": {"files": [str(short)], "validation": 1.0}},
    }
    with pytest.raises(DataError, match="part 'short'"):
        training.trained(folder, "short", data=data, length=64, batch=1)
    assert not (folder / "short" / "metrics.jsonl").exists()


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_last_checkpoint(folder):
    wild = {"matrices": {"method": "adamw", "learning_rate": 1e30}, "embedding": 1e30}
    with pytest.raises(RunError) as error:
        training.trained(folder, "wild", optimizer=wild, checkpoint={"every": 1})
    step = len(runs.metrics(folder / "wild"))
    saved = sorted((folder / "wild/checkpoints").iterdir())[-1]
    assert f"wild: step {step}: nll is nan" in str(error.value)
    assert f"the last good checkpoint is {saved}" in str(error.value)
    assert saved.name == f"step-{step - 1:08d}"


def test_settings_of_the_process_are_as_before_after_a_run(folder):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run = training.trained(folder, "threads", threads=1, tokens=64 * 4, evaluation={})
        assert runs.manifest(run)["threads"] == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (
            {"model": {"width": 1 << 30, "layers": 1, "heads": 1, "hidden": 2, "residual": "prenorm"}},
            "the model's size",
        ),
        (
            {"model": {"width": 32, "layers": 10**8, "heads": 2, "hidden": 48, "residual": "prenorm"}},
            "the model's size",
        ),
        ({"batch": 10**9, "tokens": 10**13}, "batch or length, or raise accumulation"),
    ],
    ids=["width", "layers", "batch"],
)
def test_a_run_that_no_machine_can_hold_is_refused_before_it_is_built(folder, changes, what):
    with pytest.raises(ConfigError, match=f"GiB of memory at the least, and cpu has .*; lower {what}"):
        training.trained(folder, "huge", **changes)
    assert not (folder / "huge" / "manifest.json").exists()


def test_memory_that_is_not_there_is_one_line_and_other_errors_pass(tmp_path):
    with (
        pytest.raises(RunError, match=f"{tmp_path}: there is not enough memory; lower batch or length"),
        enough_memory(tmp_path),
    ):
        torch.empty(1 << 50, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="size of tensor"), enough_memory(tmp_path):
        torch.zeros(2) + torch.zeros(3)
