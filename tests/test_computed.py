"""How a model is computed changes no result: recomputation, two phases, compiled parts, memory."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
import training
from networks import attnres, moved, tokens
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from depthroute import launch, ops, residuals, runs
from depthroute.bench.step import saved_bytes
from depthroute.config import dump
from depthroute.model.generate import Sampling, generate
from depthroute.model.transformer import ModelConfig, Transformer
from depthroute.presets import PRESETS, expand_model

BLOCKED = attnres({"blocks": 3}, "value", "qk_v")


def loss_and_gradients(model: Transformer) -> list[torch.Tensor]:
    logits = model(tokens())
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens().roll(-1, 1).flatten())
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]


def of_preset(preset: str, **computed: str) -> Transformer:
    residual = {"preset": preset} if preset.endswith(("prenorm", "-full")) else {"preset": preset, "blocks": 3}
    raw = {"vocab": 11, "width": 16, "layers": 6, "heads": 2, "hidden": 24, "residual": residual}
    if PRESETS[preset].rank is not None:
        residual["rank"] = 4
    model = Transformer(ModelConfig.parse(expand_model(raw)), **computed).initialise(0).double()
    with torch.no_grad():
        for name, parameter in model.residual.named_parameters():
            if "query" in name:
                parameter += torch.arange(parameter.numel()).sin()
    return model


class Operators(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("blocks", [2, 3])
def test_no_read_copies_its_sources_to_choose_coordinates_or_to_scale(blocks, as_a_user):
    keys = {"subset": {"rank": 4, "seed": 1}}
    residual = residuals.parse(attnres({"blocks": blocks}, keys, alpha=0.5)).build(16, 6, "native", False)
    with torch.no_grad(), Operators() as operators:
        state = residual.start(torch.ones(2, 3, 16))
        for site in range(12):
            residual.read(state, site)
            state = residual.write(state, site, torch.ones(2, 3, 16), None)
        residual.read(state, 12)
    # The embedding's, and each output's: none at a read.
    assert operators.counts["index_select"] == 1 + 12
    # A value and its key: once where a block ends, and for a sum that still grows at each read; never all sources.
    growing = sum(site not in residual.opens for site in range(1, 13))
    assert operators.counts["mul"] == 2 * (blocks - 1 + growing)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("recompute", ["layer", "block"])
def test_recomputing_gives_the_same_loss_and_gradients_from_less_memory(preset, recompute):
    kept, again = of_preset(preset), of_preset(preset, recompute=recompute)
    assert_close(loss_and_gradients(again), loss_and_gradients(kept), rtol=1e-12, atol=1e-12)
    assert saved_bytes(again, 2, 32) < 0.7 * saved_bytes(kept, 2, 32)


def test_in_two_phases_a_block_reads_its_finished_sources_once():
    # 6 sublayers in blocks of 2: sites 1, 2 and 3 to 6; the first block has one finished source, and reads directly.
    for reads, calls in (("direct", 6), ("two_phase", 1 + 2 + 3)):
        model = moved(BLOCKED, computed={"impl": "native", "reads": reads})
        before = ops.calls.copy()
        model(tokens())
        assert ops.calls - before == {"native": calls}


def test_two_phases_give_the_same_gradients_where_blocks_are_computed_again():
    model = moved(BLOCKED, computed={"reads": "two_phase", "recompute": "block"})
    plain = moved(BLOCKED, computed={"reads": "direct"})
    assert_close(loss_and_gradients(model), loss_and_gradients(plain), rtol=1e-9, atol=1e-9)


def compiled(layers: int, sources: object, impl: str) -> Transformer:
    residual = attnres(sources, "value", "qk_v")
    shape = {"vocab": 11, "width": 16, "layers": layers, "heads": 2, "hidden": 24, "residual": residual}
    return Transformer(ModelConfig.parse(shape), impl, compile=True).initialise(0)


def test_compiled_parts_are_shared_by_all_layers_so_depth_adds_no_graph(as_a_user):
    torch.compiler.reset()
    counted = torch._dynamo.utils.counters
    counted.clear()  # of what other tests have compiled
    for sources in ({"blocks": 3}, "full"):
        # Ten layers are enough to read sources in groups of every size, after an earlier group and first.
        loss_and_gradients(compiled(10, sources, "compiled"))
        graphs = counted["stats"]["unique_graphs"]
        loss_and_gradients(compiled(24, sources, "compiled"))
        assert counted["stats"]["unique_graphs"] == graphs
    assert counted["stats"]["unique_graphs"] <= 30
    assert not counted["graph_break"]


def test_a_compiled_model_equals_an_eager_one(as_a_user):
    fast = compiled(3, {"blocks": 3}, "native").double()
    slow = Transformer(fast.config, "reference").double()
    slow.load_state_dict(fast.state_dict())
    assert_close(loss_and_gradients(fast), loss_and_gradients(slow), rtol=1e-10, atol=1e-10)


def test_a_compiled_model_takes_texts_of_any_length_and_generates(as_a_user):
    torch.compiler.reset()
    fast = compiled(2, {"blocks": 2}, "native").double()
    slow = Transformer(fast.config, "reference").double()
    slow.load_state_dict(fast.state_dict())
    for length in (12, 5, 9, 1):
        assert_close(fast(tokens(length=length)), slow(tokens(length=length)), rtol=1e-10, atol=1e-10)
    greedy = Sampling(temperature=0)
    for prompt in (torch.arange(4), torch.arange(7)):
        assert list(generate(fast, prompt, 3, greedy)) == list(generate(slow, prompt, 3, greedy))


def test_the_manifest_says_how_a_run_was_computed(tmp_path):
    training.write_texts(tmp_path)
    manifest = runs.manifest(training.trained(tmp_path, "run", reads="two_phase", recompute="layer"))
    assert (manifest["impl"], manifest["reads"]) == ("native", "two_phase")
    assert manifest["allocator"] == launch.allocator()


def test_the_command_trains_with_a_steady_allocator(tmp_path: Path):
    training.write_texts(tmp_path)
    (tmp_path / "run.yaml").write_text(dump(training.tiny(tmp_path)))
    arguments = ["train", tmp_path / "run.yaml", "--run", tmp_path / "run", "--data", tmp_path / "data"]
    environment = {name: value for name, value in os.environ.items() if name not in launch.ALLOCATOR}
    subprocess.run([sys.executable, "-m", "depthroute", *arguments], env=environment, check=True, capture_output=True)
    assert runs.manifest(tmp_path / "run")["allocator"] == dict(launch.ALLOCATOR)
