"""Small networks for the oracle, as plain dicts, and a PreNorm network made by hand."""

import oracle
import torch
import torch.nn.functional as F

WIDTH = 16
SOURCES = ["full", {"blocks": 1}, {"blocks": 4}, {"block_layers": 2}, {"block_sublayers": 3}]
KEYS = ["value", {"sliced": 5}, {"subset": {"rank": 5, "seed": 3}}, {"projected": 5}]


def attnres(sources="full", keys="value", routes="shared", alpha=0.0, beta=0.0, gain=False, eps=0.0):
    return {
        "name": "attnres",
        "sources": sources,
        "keys": keys,
        "routes": routes,
        "alpha": alpha,
        "beta": beta,
        "gain": gain,
        "eps": eps,
    }


def tiny(residual, **changes):
    config = {
        "vocab": 11,
        "width": WIDTH,
        "layers": 3,
        "heads": 4,
        "kv_heads": 2,
        "head_width": 6,
        "hidden": 20,
        "rope_theta": 100.0,
        "norm_gain": False,
        "norm_eps": 0.0,
        "qk_norm": True,
        "tied": False,
        "document_mask": False,
        "residual": residual,
    }
    return config | changes


def draw(config, seed=0, zero_queries=False):
    generator = torch.Generator().manual_seed(seed)
    parameters = {}
    for name, shape in oracle.parameter_shapes(config).items():
        value = torch.randn(shape, generator=generator, dtype=torch.float64)
        if len(shape) == 2:
            value = value * 0.5
        if name.endswith("gain") or name.endswith("norm.weight"):
            value = 1 + 0.3 * value
        if zero_queries and ".query" in name:
            value = torch.zeros_like(value)
        parameters[name] = value.requires_grad_()
    return parameters


def draw_tokens(config, tokens=6):
    return torch.randint(config["vocab"], (2, tokens), generator=torch.Generator().manual_seed(1))


def pre_norm_network(config, parameters, tokens, documents=None):
    """An ordinary PreNorm decoder out of torch's own parts, with RoPE as a product of complex numbers."""
    batch, length = tokens.shape

    def norm(x, name):
        gain = parameters[f"{name}.weight"] if config["norm_gain"] else None
        return F.rms_norm(x, (x.shape[-1],), gain, config["norm_eps"])

    def turn(x):
        half = config["head_width"] // 2
        frequency = config["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
        turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([turned.real, turned.imag], dim=-1)

    mask = torch.ones(batch, 1, length, length, dtype=torch.bool).tril()
    if documents is not None:
        mask = mask & (documents[:, None, :, None] == documents[:, None, None, :])
    stream = parameters["embed_tokens.weight"][tokens]
    for layer in range(config["layers"]):
        name = f"layers.{layer}"
        x = norm(stream, f"{name}.input_layernorm")
        q, k, v = (
            (x @ parameters[f"{name}.self_attn.{role}_proj.weight"].T)
            .unflatten(-1, (-1, config["head_width"]))
            .transpose(1, 2)
            for role in "qkv"
        )
        if config["qk_norm"]:
            q, k = norm(q, f"{name}.self_attn.q_norm"), norm(k, f"{name}.self_attn.k_norm")
        heads = F.scaled_dot_product_attention(turn(q), turn(k), v, attn_mask=mask, enable_gqa=True)
        value_rows = parameters[f"{name}.self_attn.o_proj.weight"][: config["width"]]
        stream = stream + heads.transpose(1, 2).flatten(2) @ value_rows.T
        x = norm(stream, f"{name}.post_attention_layernorm")
        gate, up = (x @ parameters[f"{name}.mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        stream = stream + (F.silu(gate) * up) @ parameters[f"{name}.mlp.down_proj.weight"][: config["width"]].T
    head = parameters["embed_tokens.weight" if config["tied"] else "lm_head.weight"]
    return norm(stream, "norm") @ head.T


def assert_same(left, right, tolerance=1e-12):
    difference = (left - right).abs().max() / right.abs().max()
    assert difference <= tolerance
