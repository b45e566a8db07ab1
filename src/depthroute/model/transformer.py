"""A decoder-only Transformer that knows no residual.

It asks the residual for each sublayer's input, norms it, and hands the sublayer's output back:

    state = residual.start(embed(tokens))
    state = residual.write(state, site, *sublayer(norm(residual.read(state, site))))      for every site
    logits = head(norm(residual.read(state, 2L)))

RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases. A part that is Llama's has Llama's name.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, cast, final, get_args

import torch
from jaxtyping import Bool, Float, Int
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from depthroute.errors import ArgumentError, ConfigError
from depthroute.model import init
from depthroute.model.cache import Cache
from depthroute.model.rotary import angles
from depthroute.model.sublayers import Attention, Context, Mlp, Output
from depthroute.ops import resolve
from depthroute.residuals import AnyResidual, Depth, Fed, Residual
from depthroute.schema import Schema, nearest
from depthroute.watched import watched


@final
class ModelConfig(Schema):
    """One architecture. Widths and ranks count coordinates; standard deviations are those of the initial weights."""

    vocab: PositiveInt | None = None
    """Tokens of the vocabulary; None until a tokenizer is known."""
    width: PositiveInt
    layers: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    """Equal to `heads` unless given."""
    head_width: PositiveInt
    """width / heads unless given."""
    hidden: PositiveInt
    rope_theta: PositiveFloat = 500000.0
    norm_gain: bool = False
    norm_eps: NonNegativeFloat = 2.0**-23
    qk_norm: bool = True
    tied: bool = False
    document_mask: bool = False
    init_std: NonNegativeFloat = 0.02
    embedding_std: NonNegativeFloat = 0.02
    head_std: NonNegativeFloat = 0.02
    """Without meaning where the head is tied to the embedding."""
    residual: AnyResidual

    @model_validator(mode="before")
    @classmethod
    def derive_heads(cls, raw: Any) -> Any:
        """Fill in what follows from width and heads, so that a stored config says it."""
        if not isinstance(raw, dict):
            return raw
        if "size" in raw:
            raise ConfigError("size: stands for several keys; depthroute.expand_model puts them in its place")
        filled = dict(raw)
        width: Any = filled.get("width")
        heads: Any = filled.get("heads")
        if "heads" in filled and filled.get("kv_heads") is None:
            filled["kv_heads"] = heads
        numbers = isinstance(width, int | float) and isinstance(heads, int | float) and heads > 0
        if filled.get("head_width") is None and numbers:
            if width % heads:
                raise ConfigError(f"width {width} is not a multiple of heads {heads}; change one or give head_width")
            filled["head_width"] = width // heads
        return filled

    @model_validator(mode="after")
    def fit_together(self) -> "ModelConfig":
        if self.heads % self.kv_heads:
            raise ConfigError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        if self.head_width % 2:
            raise ConfigError(f"head_width {self.head_width} is odd; rotary positions turn pairs of coordinates")
        return self


class Observer(ABC):
    """Who looks at a forward pass. It is called in the order of the sites, and must leave the tensors as they are."""

    @abstractmethod
    def read(self, site: int, state: Any, mixed: tuple[Tensor, ...]) -> None:
        """What the site was fed, before the norm, and the state that it was read from."""

    @abstractmethod
    def wrote(self, site: int, value: Tensor) -> None:
        """What the site's sublayer gave; the readout has none."""


@final
class Layer(nn.Module):
    """Holds one layer's parts under Llama's names; the loop over sites is the Transformer's."""

    def __init__(self, config: ModelConfig, key_rank: int, layer: int) -> None:
        super().__init__()
        self.input_layernorm = norm(config)
        self.self_attn = Attention(
            config.width,
            config.heads,
            config.kv_heads,
            config.head_width,
            layer,
            qk_norm=config.qk_norm,
            norm_gain=config.norm_gain,
            norm_eps=config.norm_eps,
            key_rank=key_rank,
        )
        self.post_attention_layernorm = norm(config)
        self.mlp = Mlp(config.width, config.hidden, key_rank=key_rank)


Reads = Literal["auto", "direct", "two_phase"]
Recompute = Literal["none", "layer", "block"]


@final
class Transformer(nn.Module):
    """See the module's docstring. The other arguments say how it is computed, and change no result beyond rounding.

    Args:
        impl: implementation of the depth reads; `auto` is resolved here, once.
        reads: a site reads all its sources at once (`direct`), or a block's sites read the finished ones together, when
            the block before has ended (`two_phase`); `auto` is resolved here, once.
        compile: whether torch.compile makes each sublayer, with its norm, one piece. Layers share the compiled code.
            Passes with a cache are not compiled: their shapes change with every token.
        recompute: what backward computes again instead of keeping it: nothing, each layer, or each of the residual's
            blocks.
    """

    def __init__(
        self,
        config: ModelConfig,
        impl: str = "auto",
        *,
        reads: Reads = "auto",
        compile: bool = False,
        recompute: Recompute = "none",
    ) -> None:
        super().__init__()
        for name, given, choices in (("reads", reads, Reads), ("recompute", recompute, Recompute)):
            if given not in get_args(choices):
                raise ArgumentError(f"{name}: {given!r} {nearest(given, get_args(choices))}")
        if config.vocab is None:
            raise ConfigError("model.vocab: not set; give it, or train with a tokenizer that sets it")
        self.config, self.impl = config, resolve(impl)
        self.reads: Reads = "direct" if reads == "auto" else reads
        self.compute = compiled_part() if compile else part
        self.recompute: Recompute = recompute
        self.embed_tokens = nn.Embedding(config.vocab, config.width)
        self.residual: Residual[Any] = config.residual.build(
            config.width, config.layers, self.impl, self.reads == "two_phase"
        )
        self.layers = nn.ModuleList([Layer(config, self.residual.key_rank, layer) for layer in range(config.layers)])
        self.norm = norm(config)
        self.lm_head = None if config.tied else nn.Linear(config.width, config.vocab, bias=False)

    def forward(
        self,
        tokens: Int[Tensor, "batch token"],
        documents: Int[Tensor, "batch token"] | None = None,
        observer: Observer | None = None,
        *,
        positions: Int[Tensor, "... token"] | None = None,
        visible: Bool[Tensor, "#batch 1 token key"] | None = None,
        cache: Cache | None = None,
        last: int | None = None,
    ) -> Float[Tensor, "batch logit vocab"]:
        """Logits of the next token.

        Args:
            tokens: token ids.
            documents: the document of every token; with `document_mask` on, attention never crosses documents.
            observer: is shown every read and every output; the logits are the same with it, to the bit.
            positions: the position of every token; 0, 1, ... after those in the cache unless given.
            visible: which keys every token may attend to, in place of the causal and document masks. The keys are
                those of the cache, then these tokens' own.
            cache: keys and values of the tokens before these, of the same document; these tokens' are added to it.
            last: of how many tokens at the end to compute logits; of all unless given.

        Raises:
            ArgumentError: tokens that are no ids of this model; no logit asked for; documents missing, or with a cache.
        """
        if last is not None and last < 1:
            raise ArgumentError(f"last: {last}; ask for the logits of at least 1 token")
        embedding = self.embedded(tokens)
        context = self.context(embedding, documents, positions, visible, cache)
        # Reads in place have no state that an observer could be shown.
        depth = self.residual if cache is None or observer is not None else cache.depth(self.residual, embedding)
        state, sublayers = depth.start(embedding), list(self.sublayers())
        for sites in self.spans():
            again = self.recompute != "none" and torch.is_grad_enabled()
            state = (
                checkpoint(self.advance, state, sites, sublayers, depth, context, observer, use_reentrant=False)
                if again
                else self.advance(state, sites, sublayers, depth, context, observer)
            )
        (readout,) = depth.read(state, 2 * self.config.layers)
        if observer is not None:
            observer.read(2 * self.config.layers, state, (readout,))
        normed = self.norm(readout if last is None else readout[:, -last:])
        return linear(normed, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(normed)

    def embedded(self, tokens: Int[Tensor, "batch token"]) -> Float[Tensor, "batch token width"]:
        if tokens.ndim != 2 or tokens.dtype not in (torch.int64, torch.int32):
            raise ArgumentError(f"tokens: {tokens.dtype} of shape {list(tokens.shape)}; give ids, [batch, token]")
        try:
            return self.embed_tokens(tokens)
        except IndexError:  # on a CPU; another device says it in its own way, and later
            raise ArgumentError(f"tokens: ids beyond the vocabulary, {self.embed_tokens.num_embeddings}") from None

    def advance(
        self,
        state: Any,
        sites: range,
        sublayers: Sequence[tuple[nn.Module, nn.Module]],
        depth: Depth[Any],
        context: Context,
        observer: Observer | None,
    ) -> Any:
        """The state after the sublayers of these sites."""
        compute = self.compute if context.cache is None else part
        for site in sites:
            mixed = depth.read(state, site)
            if observer is not None:
                observer.read(site, state, tuple(mixed))
            site_norm, sublayer = sublayers[site]
            if isinstance(mixed, Tensor) and (type(site_norm) is not nn.RMSNorm or watched(site_norm)):
                mixed = mixed.unbind(0)
            value, key = compute(site_norm, sublayer, mixed, context)
            if observer is not None:
                observer.wrote(site, value)
            state = depth.write(state, site, value, key)
        return state

    def spans(self) -> list[range]:
        """Runs of sites that are kept, or computed again, as a whole."""
        sites = 2 * self.config.layers
        starts = sorted(self.residual.opens) if self.recompute == "block" else range(0, sites, 2)
        return [range(start, stop) for start, stop in pairwise([*starts, sites])]

    def sublayers(self) -> Iterator[tuple[nn.Module, nn.Module]]:
        """Every sublayer with its PreNorm, in the order of the sites."""
        for layer in self.layers:
            assert isinstance(layer, Layer)
            yield layer.input_layernorm, layer.self_attn
            yield layer.post_attention_layernorm, layer.mlp

    def context(
        self,
        embedding: Tensor,
        documents: Tensor | None,
        positions: Tensor | None,
        visible: Tensor | None,
        cache: Cache | None,
    ) -> Context:
        tokens = embedding.shape[1]
        # A compiled pass over a cache of fixed size is told both: its length would be a number of the device.
        told = positions is not None and visible is not None
        past = 0 if cache is None or told else cache.length
        if positions is None:
            positions = torch.arange(past, past + tokens, device=embedding.device)
        cos, sin = angles(positions, self.config.head_width, self.config.rope_theta, embedding.dtype)
        if cos.ndim == 3:  # each sequence has its own, for all of its heads
            cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        if cache is not None and documents is not None:
            raise ArgumentError("documents: a cache holds one document; say what is visible instead")
        if visible is None and cache is None and self.config.document_mask:
            visible = same_document(documents)
        elif visible is None and past and tokens > 1:
            causal = torch.ones(tokens, past + tokens, dtype=torch.bool, device=embedding.device).tril(past)
            visible = causal[None, None]
        # A bool, also where the compiler has made the number of tokens a symbol.
        return Context(cos, sin, visible, visible is None and bool(tokens > 1), cache)

    def initialise(self, seed: int) -> "Transformer":
        """Draw every matrix from a generator keyed by (seed, parameter name); equal seeds share equal parts."""
        stds = {"embed_tokens.weight": self.config.embedding_std, "lm_head.weight": self.config.head_std}
        init.initialise(self, seed, self.config.width, stds, self.config.init_std)
        self.residual.reset_parameters()
        return self


# At most: each kind of sublayer, fed one, two or three mixtures, with gradients and without, of two shapes.
GRAPHS = 32


def part(site_norm: nn.Module, sublayer: nn.Module, mixed: Fed, context: Context) -> Output:
    """A sublayer with its PreNorm, which every route shares."""
    normed = site_norm(mixed).unbind(0) if isinstance(mixed, Tensor) else tuple(site_norm(one) for one in mixed)
    return sublayer(normed, context)


@functools.cache
def compiled_part() -> Callable[..., Output]:
    """One for all models: layers that are alike share its graphs. The compiler is not even imported before."""
    # A whole graph, or an error: beyond the limit it would compute uncompiled. The annotations do not know the limit.
    return cast(Any, torch).compile(part, fullgraph=True, recompile_limit=GRAPHS)


def norm(config: ModelConfig) -> nn.RMSNorm:
    return nn.RMSNorm(config.width, config.norm_eps, elementwise_affine=config.norm_gain)


def same_document(documents: Int[Tensor, "batch token"] | None) -> Bool[Tensor, "batch 1 token token"]:
    """Every token sees the earlier ones of its document."""
    if documents is None:
        raise ArgumentError("documents: this model masks attention by document; give every token's document")
    causal = torch.ones(documents.shape[1], documents.shape[1], dtype=torch.bool, device=documents.device).tril()
    same = documents.unsqueeze(-1) == documents.unsqueeze(-2)
    return (same & causal).unsqueeze(1)
