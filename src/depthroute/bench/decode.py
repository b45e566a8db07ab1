"""`depthroute bench decode`: the time of one token in generation, against PreNorm's and as more has been read before.

time_ratio    a token of the preset / a token of PreNorm after the same context, both with a cache
reads_ratio   the same, of PreNorm with the preset's weights: where keys are projected, with their rows, which it drops
growth        milliseconds a token more than after the shortest context, round by round: of the model, of PreNorm, and
              of attention over its cache alone, which is all that may grow

All contexts of a preset are timed in turn.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch.nn.functional import scaled_dot_product_attention

from depthroute.bench.step import BASELINE, build
from depthroute.bench.timing import Median, interleaved, median, ratio
from depthroute.errors import ArgumentError
from depthroute.model.cache import KeyValueCache
from depthroute.model.sublayers import Attention
from depthroute.model.transformer import Transformer

ATTENTION, KEY_ROWS = "attention", "prenorm with key rows"
"""Names of what is timed beside presets."""


def measure(
    presets: Sequence[str],
    shape: Mapping[str, Any],
    blocks: int,
    contexts: Sequence[int],
    tokens: int,
    rounds: int,
    *,
    impl: str = "auto",
    progress: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """One row a preset and context, `tokens` tokens timed at once in each round."""
    if not contexts or list(contexts) != sorted(set(contexts)) or contexts[0] < 1:
        raise ArgumentError(f"contexts: {list(contexts)} must be positive and rise")
    rows: list[dict[str, Any]] = []
    for preset in presets:
        models = {name: build(name, shape, blocks, {"impl": impl}) for name in (BASELINE, preset)}
        share(models[preset], models[BASELINE])
        alike = BASELINE
        if models[preset].residual.key_rank:
            alike, models[KEY_ROWS] = KEY_ROWS, with_projections(build(BASELINE, shape, blocks, {}), models[preset])
            share(models[KEY_ROWS], models[BASELINE])
        candidates: dict[tuple[str, int], Callable[[], object]] = {}
        for context in contexts:
            candidates |= {(name, context): Decoding(model, context, tokens) for name, model in models.items()}
            candidates[ATTENTION, context] = AttentionAlone(models[BASELINE], context, tokens)
        timed = interleaved(candidates, rounds)
        for context in contexts:
            rows.append(
                {
                    "preset": preset,
                    **shape,
                    "blocks": blocks,
                    "impl": models[preset].impl,
                    "context": context,
                    "milliseconds": 1e3 * median(timed[preset, context]).value / tokens,
                    "time_ratio": ratio(timed[preset, context], timed[BASELINE, context]),
                    "reads_ratio": ratio(timed[preset, context], timed[alike, context]),
                    "growth_milliseconds": growth(timed, preset, context, contexts[0], tokens),
                    "prenorm_growth_milliseconds": growth(timed, BASELINE, context, contexts[0], tokens),
                    "attention_growth_milliseconds": growth(timed, ATTENTION, context, contexts[0], tokens),
                }
            )
            found = rows[-1]["time_ratio"]
            progress(f"{preset} after {context}: {found.value:.3f} of {BASELINE}'s [{found.low:.3f}, {found.high:.3f}]")
    return rows


def growth(
    timed: Mapping[tuple[str, int], Sequence[float]], name: str, context: int, shortest: int, tokens: int
) -> Median:
    """Milliseconds a token more than after the shortest context, round by round."""
    pairs = zip(timed[name, context], timed[name, shortest], strict=True)
    return median([1e3 * (here - before) / tokens for here, before in pairs])


def share(model: Transformer, other: Transformer) -> None:
    """Give a model the very weights of another where both have them.

    A token takes as long as its weights take to arrive, which depends by some percent on where they lie in memory.
    """
    theirs = dict(other.named_parameters())
    for name, parameter in list(model.named_parameters()):
        if name in theirs and theirs[name].shape == parameter.shape:
            part, _, last = name.rpartition(".")
            setattr(model.get_submodule(part), last, theirs[name])


def with_projections(model: Transformer, other: Transformer) -> Transformer:
    """A model whose sublayers end in another's projections. What they give beyond a value is dropped."""
    for (_, mine), (_, theirs) in zip(model.sublayers(), other.sublayers(), strict=True):
        name = "o_proj" if isinstance(mine, Attention) else "down_proj"
        setattr(mine, name, getattr(theirs, name))
    return model


@final
class Decoding:
    """Calling it reads `tokens` tokens, one a pass, after the context: always the same ones."""

    def __init__(self, model: Transformer, context: int, tokens: int) -> None:
        self.model, self.context, self.tokens = model, context, tokens
        self.cache = KeyValueCache(model.config.layers, context + tokens)
        ids = torch.arange(context)[None] % model.embed_tokens.num_embeddings
        self.token = ids[:, :1]
        with torch.inference_mode():
            model(ids, cache=self.cache, last=1)

    @torch.inference_mode()
    def __call__(self) -> None:
        self.cache.cut(self.context)
        for _ in range(self.tokens):
            self.model(self.token, cache=self.cache)


@final
class AttentionAlone:
    """The same for scaled dot-product attention over the keys and values of all layers, and nothing else."""

    def __init__(self, model: Transformer, context: int, tokens: int) -> None:
        config, like = model.config, model.embed_tokens.weight
        self.tokens, self.grouped = tokens, config.heads != config.kv_heads
        self.query = like.new_zeros(1, config.heads, 1, config.head_width)
        # A cache a layer, as in the model: one for all would stay warm.
        self.kept = [like.new_zeros(2, 1, config.kv_heads, context, config.head_width) for _ in range(config.layers)]

    @torch.inference_mode()
    def __call__(self) -> None:
        for _ in range(self.tokens):
            for keys, values in self.kept:
                scaled_dot_product_attention(self.query, keys, values, enable_gqa=self.grouped)
