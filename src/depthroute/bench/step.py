"""`depthroute bench step`: a training step of presets against PreNorm's, computed the same way, in one run.

A step is forward, loss and backward. The optimiser is left out: it costs every arm the same and would hide the reads.
"""

import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from torch.compiler import config as compiler
from torch.utils._pytree import tree_leaves

from depthroute.bench.timing import interleaved, median, ratio
from depthroute.model.transformer import ModelConfig, Reads, Recompute, Transformer
from depthroute.presets import expand_model

BASELINE = "prenorm"


def measure(
    presets: Sequence[str],
    shape: Mapping[str, Any],
    blocks: int,
    batch: int,
    length: int,
    rounds: int,
    *,
    impl: str = "auto",
    reads: Reads = "auto",
    compile: bool = True,
    recompute: Recompute = "none",
    progress: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """One row a preset: its time and saved bytes as ratios to PreNorm's, and what compiling both took from nothing."""
    rows = []
    for preset in presets:
        torch.compiler.reset()
        computed: dict[str, Any] = {"impl": impl, "reads": reads, "compile": compile, "recompute": recompute}
        models = {name: build(name, shape, blocks, computed) for name in (BASELINE, preset)}
        steps = {name: step_of(model, batch, length) for name, model in models.items()}
        with no_compiled_code_on_disk():
            first = {name: seconds(step) for name, step in steps.items()}
        progress(f"{preset}: first steps took {first[BASELINE]:.1f} and {first[preset]:.1f} s")
        timed = interleaved(steps, rounds)
        saved = {name: saved_bytes(model, batch, length) for name, model in models.items()}
        rows.append(
            {
                "preset": preset,
                **shape,
                "blocks": blocks,
                "batch": batch,
                "length": length,
                "compile": compile,
                "recompute": recompute,
                "impl": models[preset].impl,
                "reads": models[preset].reads,
                "milliseconds": 1e3 * median(timed[preset]).value,
                "time_ratio": ratio(timed[preset], timed[BASELINE]),
                "saved_bytes": saved[preset],
                "saved_ratio": saved[preset] / saved[BASELINE],
                "compile_seconds": sum(first[name] - median(timed[name]).value for name in models),
            }
        )
        result = rows[-1]["time_ratio"]
        progress(f"{preset}: {result.value:.3f} of {BASELINE}'s time [{result.low:.3f}, {result.high:.3f}]")
    return rows


def build(preset: str, shape: Mapping[str, Any], blocks: int, computed: Mapping[str, Any]) -> Transformer:
    """Every query is moved, so that no read is the plain mean that it is at the start."""
    in_blocks = not (preset == BASELINE or preset.endswith("-full"))
    residual = {"preset": preset, **({"blocks": blocks} if in_blocks else {})}
    config = ModelConfig.parse(expand_model({**shape, "residual": residual}))
    model = Transformer(config, **computed).initialise(0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.residual.named_parameters():
            if "query" in name:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def step_of(model: Transformer, batch: int, length: int) -> Callable[[], None]:
    tokens, targets = example(model, batch, length)

    def step() -> None:
        loss(model, tokens, targets).backward()
        for parameter in model.parameters():
            parameter.grad = None

    return step


def example(model: Transformer, batch: int, length: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(model.embed_tokens.num_embeddings, (batch, length + 1), generator=generator)
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def loss(model: Transformer, tokens: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def saved_bytes(model: Transformer, batch: int, length: int) -> int:
    """Of storages kept for backward, once each, parameters left out; with what a recomputed part begins from."""
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    tokens, targets = example(model, batch, length)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        if model.recompute != "none":
            note_starts(model, note)
        kept = loss(model, tokens, targets)
    vars(model).pop("advance", None)
    for tensor in (*model.parameters(), *model.buffers()):
        saved.pop(tensor.untyped_storage().data_ptr(), None)
    del kept
    return sum(saved.values())


def note_starts(model: Transformer, note: Callable[[Tensor], Tensor]) -> None:
    """A part that backward computes again holds its state without telling the hooks."""
    advance = model.advance

    def noting(state: Any, *arguments: Any) -> Any:
        for tensor in tree_leaves(state):
            note(tensor)
        return advance(state, *arguments)

    vars(model)["advance"] = noting


@contextmanager
def no_compiled_code_on_disk() -> Generator[None]:
    """What is compiled here is compiled from nothing."""
    with warnings.catch_warnings(), cast(Any, compiler).patch(force_disable_caches=True):
        warnings.filterwarnings("ignore", "dynamo_pgo force disabled")
        yield


def seconds(step: Callable[[], None]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began
