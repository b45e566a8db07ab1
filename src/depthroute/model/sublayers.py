"""The two kinds of sublayer. Each maps what its site has read, already normed, to (value, key rows or None).

With emitted keys the output projection has `key_rank` more rows, [value; u] = W h: one matrix product for both.
"""

from typing import NamedTuple, final

from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from depthroute.model.cache import Cache
from depthroute.model.rotary import rotate

Output = tuple[Tensor, Tensor | None]
NUMBER = 4
"""Bytes of a norm's scale and of attention's log-normaliser."""


class SublayerFlops(NamedTuple):
    """Forward FLOPs a token; a product and its sum are two."""

    linear: int
    """Products with the weights, key rows apart."""
    key_rows: int
    attention: int
    """Scores and mixtures over tokens, on average over the positions of a causal sequence."""


class Context(NamedTuple):
    """What every attention of one forward pass shares."""

    cos: Float[Tensor, "... token half"]
    sin: Float[Tensor, "... token half"]
    visible: Bool[Tensor, "#batch 1 token key"] | None
    """Which tokens may attend to which; None: all earlier ones."""
    causal: bool
    """Whether there are later ones to hide: not where `visible` hides them, or one token is alone."""
    cache: Cache | None
    """Where the keys and values of earlier tokens are; None: there are none."""


@final
class Attention(nn.Module):
    """Grouped-query causal attention, rotary positions, optional QK-norm (before the rotation); no biases."""

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        head_width: int,
        layer: int,
        *,
        qk_norm: bool,
        norm_gain: bool,
        norm_eps: float,
        key_rank: int,
    ) -> None:
        super().__init__()
        self.width, self.head_width, self.layer = width, head_width, layer
        self.q_proj = nn.Linear(width, heads * head_width, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * head_width, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * head_width, bias=False)
        self.o_proj = nn.Linear(heads * head_width, width + key_rank, bias=False)
        self.grouped = heads != kv_heads
        norm = (lambda: nn.RMSNorm(head_width, norm_eps, elementwise_affine=norm_gain)) if qk_norm else nn.Identity
        self.q_norm, self.k_norm = norm(), norm()

    def forward(self, inputs: tuple[Float[Tensor, "batch token width"], ...], context: Context) -> Output:
        for_query, for_key, for_value = roles(inputs)
        query = rotate(self.q_norm(self.split(self.q_proj(for_query))), context.cos, context.sin)
        key = rotate(self.k_norm(self.split(self.k_proj(for_key))), context.cos, context.sin)
        value = self.split(self.v_proj(for_value))
        if context.cache is not None:
            key, value = context.cache.update(key.to(value.dtype), value, self.layer)
        mixed = scaled_dot_product_attention(
            query.to(value.dtype),
            key.to(value.dtype),
            value,
            attn_mask=context.visible,
            is_causal=context.causal,
            enable_gqa=self.grouped,
        )
        return output(self.o_proj(mixed.transpose(1, 2).flatten(2)), self.width)

    def flops(self, tokens: int) -> SublayerFlops:
        linear = sum(part.weight.numel() for part in (self.q_proj, self.k_proj, self.v_proj, self.o_proj))
        key_rows = (self.o_proj.out_features - self.width) * self.o_proj.in_features
        return SublayerFlops(2 * (linear - key_rows), 2 * key_rows, 2 * self.o_proj.in_features * (tokens + 1))

    def kept(self, element: int, inputs: int) -> int:
        """Bytes a token that a forward pass keeps for its backward, fed `inputs` normed tensors.

        The inputs, q and k before their norm and rotation and after, v, the mixture over tokens, its log-normaliser.
        """
        query, key = self.q_proj.out_features, self.k_proj.out_features
        heads, kv_heads = query // self.head_width, key // self.head_width
        numbers = heads
        coordinates = inputs * self.width + 2 * query + 2 * key
        if isinstance(self.q_norm, nn.RMSNorm):
            coordinates, numbers = coordinates + query + key, numbers + heads + kv_heads
        return coordinates * element + numbers * NUMBER

    def split(self, x: Float[Tensor, "batch token heads"]) -> Float[Tensor, "batch head token head_width"]:
        return x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)


@final
class Mlp(nn.Module):
    """SwiGLU: W_down (silu(W_gate x) * W_up x). Shazeer, arXiv 2002.05202."""

    def __init__(self, width: int, hidden: int, *, key_rank: int) -> None:
        super().__init__()
        self.width = width
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width + key_rank, bias=False)

    def forward(self, inputs: tuple[Float[Tensor, "batch token width"], ...], context: Context) -> Output:
        (x,) = inputs
        return output(self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x)), self.width)

    def flops(self, tokens: int) -> SublayerFlops:
        linear = sum(part.weight.numel() for part in (self.gate_proj, self.up_proj, self.down_proj))
        key_rows = (self.down_proj.out_features - self.width) * self.down_proj.in_features
        return SublayerFlops(2 * (linear - key_rows), 2 * key_rows, 0)

    def kept(self, element: int, inputs: int) -> int:
        """Bytes a token that a forward pass keeps for its backward: the input, gate, silu(gate), up, their product."""
        return (inputs * self.width + 4 * self.gate_proj.out_features) * element


def roles(inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """What feeds query, key and value, from one route (all), two (query and key, value) or three."""
    if len(inputs) == 1:
        return inputs[0], inputs[0], inputs[0]
    if len(inputs) == 2:
        return inputs[0], inputs[0], inputs[1]
    return inputs[0], inputs[1], inputs[2]


def output(rows: Float[Tensor, "batch token rows"], width: int) -> Output:
    if rows.shape[-1] == width:
        return rows, None
    value, key = rows.split_with_sizes([width, rows.shape[-1] - width], dim=-1)
    return value, key
