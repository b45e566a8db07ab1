"""The Transformer as a model of Hugging Face's transformers: the same weights and code behind their interface.

    from transformers import AutoModelForCausalLM
    import depthroute.interop.huggingface                       # makes the Auto classes know the model
    model = AutoModelForCausalLM.from_pretrained(directory)

transformers 5.22 renamed the cache argument of `forward` from `past_key_values` to `cache`. Both names are taken, and
nothing unknown is: a forward that swallows the cache under its other name generates wrong text in silence.
"""

from typing import Any, final

import torch
import transformers
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from depthroute.errors import ArgumentError, ConfigError, RunError
from depthroute.model.cache import Cache
from depthroute.model.transformer import ModelConfig, Transformer

CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
"""What the installed transformers calls the cache in a model's output."""


@final
class DepthRouteConfig(PretrainedConfig):
    """`model` is a `ModelConfig` as plain data; `impl` names the implementation of the depth reads."""

    model_type = "depthroute"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]  # noqa: RUF012  (the name and type are theirs)

    def __init__(
        self, model: dict[str, Any] | None = None, impl: str = "auto", use_cache: bool = True, **others: Any
    ) -> None:
        """Without `model` there is no architecture: transformers 4 makes such a config to look up its defaults."""
        self.impl, self.use_cache = impl, use_cache
        self.model = None if model is None else ModelConfig.parse(model, "model").model_dump(mode="json")
        others["tie_word_embeddings"] = self.model is not None and self.model["tied"]
        super().__init__(**others)

    @property
    def parsed(self) -> ModelConfig:
        if self.model is None:
            raise AttributeError("this config has no model")
        return ModelConfig.parse(self.model, "model")

    # Under these names transformers asks for the shape, to make caches.

    @property
    def vocab_size(self) -> int | None:
        return self.parsed.vocab

    @property
    def hidden_size(self) -> int:
        return self.parsed.width

    @property
    def num_hidden_layers(self) -> int:
        return self.parsed.layers

    @property
    def num_attention_heads(self) -> int:
        return self.parsed.heads

    @property
    def num_key_value_heads(self) -> int:
        return self.parsed.kv_heads

    @property
    def head_dim(self) -> int:
        return self.parsed.head_width


@final
class TheirCache(Cache):
    """A cache of transformers, as the Transformer asks for one. `slots` are the places of this pass's tokens in it."""

    def __init__(self, kept: "transformers.Cache", slots: Int[Tensor, " token"]) -> None:
        self.kept, self.slots = kept, slots

    @property
    def owner(self) -> object:
        return self.kept

    @property
    def length(self) -> int:
        return int(self.kept.get_seq_length())

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        # A static cache of transformers 4 writes where it is told; later ones count for themselves.
        return self.kept.update(key, value, layer, {"cache_position": self.slots})


@final
class DepthRouteForCausalLM(PreTrainedModel, GenerationMixin):
    """The Transformer with its language-model head. Every row of a batch is one document.

    A new model draws its weights from torch's seed: after `torch.manual_seed(s)` they are those of
    `Transformer(config).initialise(s)`.
    """

    config_class = DepthRouteConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True
    _supports_sdpa = True
    _can_compile_fullgraph = True
    # The sources of a read come from all layers: a model split over devices would move them at every site.
    _no_split_modules = ["Transformer"]  # noqa: RUF012

    def __init__(self, config: DepthRouteConfig) -> None:
        if config.model is None:
            raise ConfigError("model: missing; give DepthRouteConfig the model's configuration")
        super().__init__(config)
        self.model = Transformer(config.parsed, config.impl)
        if not self.model.embed_tokens.weight.is_meta:
            self.model.initialise(torch.initial_seed() % 2**63)
        self.post_init()

    @classmethod
    def of(cls, model: Transformer) -> "DepthRouteForCausalLM":
        """The very model, with its weights, behind this interface."""
        with torch.device("meta"):
            wrapped = cls(DepthRouteConfig(model=model.config.model_dump(mode="json")))
        wrapped.model = model
        return wrapped.train(model.training)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *arguments: Any, **options: Any) -> Any:
        """As in transformers, but RunError where a weight is missing, of another shape, or unknown to the model."""
        asked = options.pop("output_loading_info", False)
        options["output_loading_info"] = True
        loaded: Any = super().from_pretrained(pretrained_model_name_or_path, *arguments, **options)
        model, info = loaded
        for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
            if info[kind]:
                names = ", ".join(map(str, sorted(info[kind])))
                raise RunError(f"{pretrained_model_name_or_path}: {kind.replace('_', ' ')}: {names}")
        return (model, info) if asked else model

    def forward(
        self,
        input_ids: Int[Tensor, "batch token"],
        attention_mask: Tensor | None = None,
        position_ids: Int[Tensor, "... token"] | None = None,
        past_key_values: "transformers.Cache | None" = None,
        cache: "transformers.Cache | None" = None,
        labels: Int[Tensor, "batch token"] | None = None,
        use_cache: bool | None = None,
        cache_position: Int[Tensor, " token"] | None = None,
        logits_to_keep: int = 0,
        num_items_in_batch: Tensor | int | None = None,
        inputs_embeds: None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> CausalLMOutputWithPast:
        """Logits of the next token, and with `labels` the mean NLL in nats a token, labels shifted here.

        Args:
            attention_mask: 0 marks padding, [batch, token] with the cached tokens' first; or what every token may
                attend to, bool [batch, 1, token, key].
            past_key_values, cache: keys and values of earlier tokens, under either name.
            labels: token ids; -100 is left out of the mean.
            logits_to_keep: of how many tokens at the end to compute logits; 0 for all.
            num_items_in_batch: what the loss is divided by instead of its number of labels.
        """
        refused = {
            "inputs_embeds": inputs_embeds is not None,
            "output_attentions": output_attentions,
            "output_hidden_states": output_hidden_states,
            "return_dict=False": return_dict is False,
        }
        for name in (name for name, given in refused.items() if given):
            raise ArgumentError(f"{name}: this model does not offer it; leave it out")
        kept = one_cache(past_key_values, cache)
        if kept is None and (self.config.use_cache and not self.training if use_cache is None else use_cache):
            kept = transformers.DynamicCache()
        if kept is not None and self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            raise ArgumentError("use_cache: backward would fill the cache again; leave it out while checkpointing")
        slots = cache_position
        if slots is None:
            past = 0 if kept is None else kept.get_seq_length()
            slots = torch.arange(input_ids.shape[1], device=input_ids.device) + past
        logits = self.model(
            input_ids,
            positions=slots if position_ids is None else position_ids,
            visible=self.visible(slots, attention_mask, kept),
            cache=None if kept is None else TheirCache(kept, slots),
            last=logits_to_keep or None,
        )
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=logits.shape[-1], num_items_in_batch=num_items_in_batch
            )
        cached: dict[str, Any] = {CACHE: kept}
        return CausalLMOutputWithPast(loss=loss, logits=logits, **cached)

    def visible(
        self, slots: Int[Tensor, " token"], mask: Tensor | None, kept: "transformers.Cache | None"
    ) -> Bool[Tensor, "#batch 1 token key"] | None:
        """What every token may attend to: itself, and the earlier tokens that are no padding."""
        if kept is None and mask is None and not self.model.config.document_mask:
            return None  # all earlier tokens
        static = isinstance(kept, transformers.StaticCache)
        if static:
            layer: Any = kept.layers[0]
            keys = layer.max_cache_len
        else:
            keys = len(slots) + (0 if kept is None else kept.get_seq_length())
        key = torch.arange(keys, device=slots.device)
        itself, earlier = key == slots[:, None], key < slots[:, None]
        if mask is None:
            return (itself | earlier)[None, None]
        if mask.dtype == torch.bool and mask.shape[1:] == (1, len(slots), keys):
            return mask | itself
        if mask.ndim != 2 or mask.shape[1] > keys or (mask.shape[1] < keys and not static):
            raise ArgumentError(
                f"attention_mask: {mask.dtype} of shape {list(mask.shape)}; give [batch, {keys}] with 0 for padding, "
                f"cached tokens first, or bool [batch, 1, {len(slots)}, {keys}]"
            )
        real = pad(mask.bool(), (0, keys - mask.shape[1]))[:, None, None]
        return real & earlier | itself

    def _set_gradient_checkpointing(
        self, enable: bool = True, gradient_checkpointing_func: Any = None, every_n_layers: int = 1
    ) -> None:
        """Called by `gradient_checkpointing_enable` and `_disable`: the Transformer checkpoints by itself."""
        if every_n_layers != 1:
            raise ArgumentError(f"every_n_layers: {every_n_layers}; this model checkpoints every layer or none")
        self.model.recompute = "layer" if enable else "none"

    @property
    def gradient_checkpointing(self) -> bool:
        return self.model.recompute != "none"

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        raise ArgumentError("the vocabulary is part of the model's config; it cannot be resized")

    def get_output_embeddings(self) -> nn.Module | None:
        """None where the head is the embedding: there is one weight then, and nothing to tie."""
        return self.model.lm_head

    def _init_weights(self, module: nn.Module) -> None:
        """Weights are drawn in `__init__`, and `from_pretrained` leaves none to draw."""


def one_cache(
    past_key_values: "transformers.Cache | None", cache: "transformers.Cache | None"
) -> "transformers.Cache | None":
    if past_key_values is not None and cache is not None:
        raise ArgumentError("past_key_values and cache are two names of one argument; give one")
    return past_key_values if cache is None else cache


AutoConfig.register("depthroute", DepthRouteConfig)
AutoModelForCausalLM.register(DepthRouteConfig, DepthRouteForCausalLM)
