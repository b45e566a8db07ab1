"""Tokens in, tokens out: a continuation, one token a pass, with a cache. It knows nothing of text.

p = softmax(logits / temperature), cut to the `top_k` likeliest tokens, then to the fewest that hold `top_p` of p
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from depthroute.errors import ArgumentError
from depthroute.model.cache import KeyValueCache
from depthroute.model.transformer import Transformer

COLDEST = 1e-5
"""Logits are divided by the temperature, in fp32."""


class Sampling(NamedTuple):
    """How a token is chosen. Temperature 0 takes the likeliest."""

    temperature: float = 1.0
    top_k: int | None = None
    """Tokens to choose among; None for all."""
    top_p: float | None = None
    """Probability that the tokens to choose among have together; None for all."""
    seed: int = 0


def generate(
    model: Transformer,
    prompt: Sequence[int] | Int[Tensor, " token"],
    tokens: int,
    sampling: Sampling | None = None,
    vocab: int | None = None,
) -> Iterator[int]:
    """The next `tokens` token ids after the prompt, each as soon as it is chosen.

    Args:
        sampling: how they are chosen; as they are distributed unless given.
        vocab: how many ids can be chosen, from 0; all of the model's unless given.

    Raises:
        ArgumentError: an empty prompt, ids that the model does not know, no token asked for, or choices out of range.
    """
    known = model.embed_tokens.num_embeddings
    vocab, sampling = known if vocab is None else vocab, Sampling() if sampling is None else sampling
    try:
        ids = torch.as_tensor(prompt)
    except (TypeError, ValueError, RuntimeError):  # whatever torch says of what is no row of numbers
        raise ArgumentError(f"prompt: {prompt!r}; give token ids, such as tokenizer.encode(text)") from None
    check(ids, known, tokens, sampling, vocab)
    return continuation(model, ids, tokens, sampling, vocab)


@torch.inference_mode()
def continuation(
    model: Transformer, prompt: Int[Tensor, " token"], tokens: int, sampling: Sampling, vocab: int
) -> Iterator[int]:
    cache = KeyValueCache(model.config.layers, len(prompt) + tokens - 1)
    generator = torch.Generator().manual_seed(sampling.seed)
    new = prompt.to(model.embed_tokens.weight.device).unsqueeze(0)
    for _ in range(tokens):
        logits = model(new, cache=cache, last=1)[0, 0, :vocab]
        token = choose(logits, sampling, generator)
        yield token
        new = new.new_tensor([[token]])


def choose(logits: Float[Tensor, " vocab"], sampling: Sampling, generator: torch.Generator) -> int:
    if sampling.temperature == 0:
        return int(logits.argmax())
    # On the CPU, in fp32: one seed draws the same there whatever device computed the logits.
    scaled, ids = (logits.cpu().float() / sampling.temperature).sort(descending=True, stable=True)
    weights = torch.softmax(scaled[: sampling.top_k], dim=0)
    if sampling.top_p is not None:
        before = weights.cumsum(0) - weights
        weights = weights.masked_fill(before >= sampling.top_p, 0)
    return int(ids[torch.multinomial(weights, 1, generator=generator)])


def check(prompt: Tensor, known: int, tokens: int, sampling: Sampling, vocab: int) -> None:
    if not isinstance(sampling, Sampling):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(f"sampling: {sampling!r}; give a Sampling, such as Sampling(temperature=0.8)")
    for name, number in {"tokens": tokens, "vocab": vocab, "seed": sampling.seed, "top_k": sampling.top_k}.items():
        if number is not None and not isinstance(number, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"{name}: {number!r}; give a whole number")
    for name, number in {"temperature": sampling.temperature, "top_p": sampling.top_p}.items():
        if number is not None and not isinstance(number, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"{name}: {number!r}; give a number")
    temperature, top_k, top_p, seed = sampling
    if prompt.numel() == 0:
        raise ArgumentError("prompt: it is empty; give at least one token to go on from")
    if prompt.ndim != 1 or prompt.dtype not in (torch.int64, torch.int32):
        raise ArgumentError(f"prompt: {prompt.dtype} of shape {list(prompt.shape)}; give one row of token ids")
    if not 0 <= int(prompt.min()) <= int(prompt.max()) < known:
        raise ArgumentError(f"prompt: ids from {int(prompt.min())} to {int(prompt.max())}; this model knows {known}")
    if not 1 <= vocab <= known:
        raise ArgumentError(f"vocab: {vocab} must lie between 1 and the model's, {known}")
    if tokens < 1:
        raise ArgumentError(f"tokens: {tokens}; ask for at least 1")
    if temperature != 0 and not COLDEST <= temperature < float("inf"):
        raise ArgumentError(f"temperature: {temperature}; give 0 for the likeliest token, or a number from {COLDEST}")
    if temperature == 0 and (top_k, top_p) != (None, None):
        raise ArgumentError("temperature: 0 takes the likeliest token; leave out top_k and top_p, or raise it")
    if top_k is not None and not 1 <= top_k <= vocab:
        raise ArgumentError(f"top_k: {top_k} must lie between 1 and the vocabulary, {vocab}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ArgumentError(f"top_p: {top_p} must lie above 0 and at most at 1")
    if not 0 <= seed < 2**64:
        raise ArgumentError(f"seed: {seed} must lie between 0 and 2^64 - 1")
