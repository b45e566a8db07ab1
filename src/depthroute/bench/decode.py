"""The time of one token in generation: of a preset against PreNorm, and as more has been read before.

Both models take turns (A B A B ...) within each round, so that whatever slows the machine slows both; a round gives one
ratio. The ratios' median is the figure, its interval the order statistics that cover the median in 95 % of samples.

    overhead    a token of the preset / a token of PreNorm, at each context length
    growth      seconds a token more than at the shortest context, for either, and for attention over its cache alone
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from scipy import stats
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from depthroute.errors import ArgumentError
from depthroute.model.cache import KeyValueCache
from depthroute.model.transformer import ModelConfig, Transformer
from depthroute.presets import expand_model

BASELINE = "prenorm"
SHAPE = {"vocab": 8192, "width": 512, "layers": 12, "heads": 8, "hidden": 1408}


def run(
    preset: str,
    *,
    shape: dict[str, Any] | None = None,
    contexts: Sequence[int] = (128, 512, 2048),
    rounds: int = 15,
    tokens: int = 8,
    impl: str = "auto",
    device: str = "cpu",
) -> dict[str, Any]:
    """Time `tokens` tokens of both models at every context length, `rounds` times in turns.

    Args:
        preset: name of the residual to time against `prenorm`.
        shape: model keys; 12 layers of width 512 unless given.
        contexts: how many tokens were read before, in rising order.

    Returns:
        plain data: for every context the seconds a token of either (medians over rounds), the median `overhead` with
        its interval, and the `growth` since the shortest context, in seconds, of either and of `attention` alone.
    """
    if rounds < 6:
        raise ArgumentError(f"rounds: {rounds} are too few for an interval of 95 %; take at least 6")
    if not contexts or list(contexts) != sorted(set(contexts)) or contexts[0] < 1:
        raise ArgumentError(f"contexts: {list(contexts)} must be positive and rise")
    given = SHAPE if shape is None else shape
    models = {
        name: Transformer(ModelConfig.parse(expand_model(given | {"residual": name}), "model"), impl)
        .initialise(0)
        .to(device)
        for name in (BASELINE, preset)
    }
    rows = [measure(models, preset, context, rounds, tokens) for context in contexts]
    for row in rows:
        row["growth"] = {name: seconds - rows[0]["seconds"][name] for name, seconds in row["seconds"].items()}
    return {
        "preset": preset,
        "baseline": BASELINE,
        "shape": given,
        "impl": models[preset].impl,
        "device": device,
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "tokens": tokens,
        "contexts": rows,
    }


def measure(models: dict[str, Transformer], preset: str, context: int, rounds: int, tokens: int) -> dict[str, Any]:
    timers: dict[str, Callable[[], float]] = {name: Timer(model, context, tokens) for name, model in models.items()}
    timers["attention"] = AttentionTimer(models[BASELINE], context, tokens)
    for timer in timers.values():
        timer()  # the first pass also pays for what is set up once
    seconds: dict[str, list[float]] = {name: [] for name in timers}
    for number in range(rounds):
        # Who goes first alternates: the second of a pair may find warmer caches.
        for name in list(timers)[:: 1 if number % 2 else -1]:
            seconds[name].append(timers[name]())
    ratios = [ours / theirs for ours, theirs in zip(seconds[preset], seconds[BASELINE], strict=True)]
    return {
        "context": context,
        "seconds": {name: statistics.median(times) for name, times in seconds.items()},
        "overhead": statistics.median(ratios),
        "interval": median_interval(ratios),
    }


@final
class Timer:
    """Calling it gives the seconds a token of `tokens` tokens after the context, always the same ones."""

    def __init__(self, model: Transformer, context: int, tokens: int) -> None:
        self.model, self.context, self.tokens = model, context, tokens
        device = model.embed_tokens.weight.device
        self.cache = KeyValueCache(model.config.layers, context + tokens)
        self.token = torch.zeros(1, 1, dtype=torch.long, device=device)
        with torch.inference_mode():
            model(
                torch.arange(context, device=device)[None] % model.embed_tokens.num_embeddings, cache=self.cache, last=1
            )

    @torch.inference_mode()
    def __call__(self) -> float:
        self.cache.cut(self.context)
        wait(self.token)
        began = time.perf_counter()
        for _ in range(self.tokens):
            self.model(self.token, cache=self.cache)
        wait(self.token)
        return (time.perf_counter() - began) / self.tokens


@final
class AttentionTimer:
    """The same for scaled dot-product attention over the keys and values of all layers, and nothing else."""

    def __init__(self, model: Transformer, context: int, tokens: int) -> None:
        config, like = model.config, model.embed_tokens.weight
        self.layers, self.tokens, self.grouped = config.layers, tokens, config.heads != config.kv_heads
        self.query = like.new_zeros(1, config.heads, 1, config.head_width)
        # A cache a layer, as in the model: one for all would stay warm.
        self.kept = [like.new_zeros(2, 1, config.kv_heads, context, config.head_width) for _ in range(config.layers)]

    @torch.inference_mode()
    def __call__(self) -> float:
        wait(self.query)
        began = time.perf_counter()
        for _ in range(self.tokens):
            for keys, values in self.kept:
                scaled_dot_product_attention(self.query, keys, values, enable_gqa=self.grouped)
        wait(self.query)
        return (time.perf_counter() - began) / self.tokens


def wait(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def median_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """The order statistics between which the median lies with at least `level` confidence, whatever the spread."""
    ordered, tail = sorted(values), (1 - level) / 2
    low = max(rank for rank in range(len(ordered) // 2) if stats.binom.cdf(rank, len(ordered), 0.5) <= tail)
    return ordered[low], ordered[-1 - low]
