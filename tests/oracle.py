"""The independent oracle: docs/equations.md, sections 1-4 and 7, once more, in fp64 and in plain loops.

    z_i = < q, g * RMSNorm(k_i) > + prior_i,    a = softmax(z) over the visible sources,    mix = sum_i a_i v_i

AttnRes = arXiv 2603.15031, LR = 2607.09694, RD = 2608.01075. Nothing here comes from `depthroute`: a mistake would
have to be made twice to go unseen. A model is a plain dict (`config`) and a dict of fp64 tensors on the CPU
(`parameters`, named and shaped as `parameter_shapes` says). Nothing is kept between sites: every source is summed
anew.
"""

import math

import torch

ROUTES = ("shared", "qk_v", "q_k_v", "tied", "average", "frozen_v", "placebo", "temperature")


# ---------------------------------------------------------------------------------------------- section 1: one read


def rms_norm(vector, eps, gain=None):
    """vector / sqrt(mean(vector^2) + eps), over the last dimension; then times the gain, where there is one."""
    normalised = vector / torch.sqrt(torch.mean(vector * vector, dim=-1, keepdim=True) + eps)
    return normalised if gain is None else gain * normalised


def read_with_lse(query, keys, values, priors, eps, gain=None):
    """(mixed, lse) of one route at one site.

    query and gain: [rank]. keys: a list of [..., rank], not yet normalised; values: a list of [..., width]; priors: a
    list of numbers, or None for zeros; one entry a source each. mixed: [..., width], lse: [...].
    """
    if not len(keys) == len(values) > 0:
        raise ValueError(f"{len(keys)} keys, {len(values)} values")
    priors = [0.0] * len(keys) if priors is None else priors
    for tensor in [query, *keys, *values]:
        if tensor.dtype != torch.float64:
            raise TypeError(f"the oracle computes in fp64, not in {tensor.dtype}")

    logits = []
    for key, prior in zip(keys, priors, strict=True):
        logits.append(torch.sum(query * rms_norm(key, eps, gain), dim=-1) + prior)

    # The largest logit cancels in the weights and is added back to lse: a constant, it keeps exp finite and no more.
    largest = torch.stack(logits).max(dim=0).values.detach()
    exponentials = [torch.exp(logit - largest) for logit in logits]
    total = sum(exponentials)

    mixed = torch.zeros_like(values[0])
    for exponential, value in zip(exponentials, values, strict=True):
        mixed = mixed + (exponential / total).unsqueeze(-1) * value
    return mixed, largest + torch.log(total)


def read(query, keys, values, priors, eps, gain=None):
    """mixed alone, of `read_with_lse`."""
    return read_with_lse(query, keys, values, priors, eps, gain)[0]


# --------------------------------------------------------------------------------------------------- section 2: sources


def block_ends(layers, sources):
    """The sublayer numbers (from 1) after which a block ends. sources: "full" or a dict of one entry."""
    sublayers = 2 * layers
    if sources == "full":
        return list(range(1, sublayers + 1))
    [(convention, number)] = sources.items()
    if number < 1:
        raise ValueError(f"{convention}={number}")
    if convention == "blocks":
        blocks = min(number, sublayers)
        return [(sublayers * i + blocks - 1) // blocks for i in range(1, blocks + 1)]  # the ceiling, in integers
    if convention == "block_layers":
        run = 2 * number
    elif convention == "block_sublayers":
        run = number
    else:
        raise ValueError(f"unknown sources {sources}")
    return [*range(run, sublayers, run), sublayers]


def sources_at(site, layers, sources):
    """For each visible source the sublayers (from 0) whose outputs it sums: for the embedding, always first, none."""
    visible = [[]]
    start = 0
    for end in block_ends(layers, sources):
        members = [sublayer for sublayer in range(start, end) if sublayer < site]
        if members:
            visible.append(members)
        start = end
    return visible


def source_counts(layers, sources):
    """The number of sources visible at each of the sites 0 .. 2L."""
    return [len(sources_at(site, layers, sources)) for site in range(2 * layers + 1)]


def read_count(config):
    """Section 7: visible sources, summed over sites 1 .. 2L, each site once whatever its routes; 0 for additive."""
    if config["residual"]["name"] == "additive":
        return 0
    return sum(source_counts(config["layers"], config["residual"]["sources"])[1:])


# ------------------------------------------------------------------------------------------------------ section 3: keys


def key_rank(config):
    """The width r of keys and queries."""
    keys = config["residual"]["keys"]
    if keys == "value":
        return config["width"]
    [(kind, rank)] = keys.items()
    if kind not in ("sliced", "subset", "projected"):
        raise ValueError(f"unknown keys {keys}")
    return rank["rank"] if kind == "subset" else rank


def is_projected(config):
    residual = config["residual"]
    return residual["name"] == "attnres" and residual["keys"] != "value" and "projected" in residual["keys"]


def key_of_value(config, value):
    """The key that is part of the value itself: all of it, its last r coordinates, or a fixed random set."""
    keys = config["residual"]["keys"]
    if keys == "value":
        return value
    if "sliced" in keys:
        return value[..., config["width"] - keys["sliced"] :]
    shuffled = torch.randperm(config["width"], generator=torch.Generator().manual_seed(keys["subset"]["seed"]))
    return value[..., shuffled[: keys["subset"]["rank"]].sort().values]


def keys_values_priors(config, parameters, site, embedding, outputs, emitted):
    """Every source visible at a site. outputs, emitted: the values and, if projected, keys of sublayers so far."""
    residual = config["residual"]
    keys, values, priors = [], [], []
    for members in sources_at(site, config["layers"], residual["sources"]):
        count = max(len(members), 1)
        value = sum(outputs[sublayer] for sublayer in members) if members else embedding
        value = count ** -residual["alpha"] * value
        if is_projected(config):
            if members:
                key = sum(emitted[sublayer] for sublayer in members)
            else:
                key = rms_norm(embedding @ parameters["residual.embedding_key.weight"].T, residual["eps"])
        else:
            key = key_of_value(config, value)
        keys.append(key)
        values.append(value)
        priors.append(residual["beta"] * math.log(count))
    return keys, values, priors


# ---------------------------------------------------------------------------------------------------- section 4: routes


def is_attention(site, layers):
    return site % 2 == 0 and site < 2 * layers


def read_parameters(site, layers, routes):
    """The names of what a site's routes own, the gain apart."""
    if routes not in ROUTES:
        raise ValueError(f"unknown routes {routes}")
    if site == 0:
        return []
    if is_attention(site, layers):
        if routes in ("qk_v", "average"):
            return ["query_qk", "query_v"]
        if routes == "q_k_v":
            return ["query_q", "query_k", "query_v"]
        if routes in ("tied", "frozen_v"):
            return ["query_qk"]
        if routes == "temperature":
            return ["query_qk", "log_temperature"]
    elif routes == "placebo" and 3 <= site < 2 * layers:
        return ["query_first", "query_second"]
    return ["query"]


def sublayer_inputs(config, parameters, site, embedding, outputs, emitted):
    """A site's mixtures, before any norm: those of roles [q, k, v] at an attention site, else a single one."""
    layers, residual = config["layers"], config["residual"]
    roles = 3 if is_attention(site, layers) else 1
    if residual["name"] == "additive":
        return [sum(outputs, start=embedding)] * roles
    if site == 0:
        return [embedding] * roles

    routes = residual["routes"]
    keys, values, priors = keys_values_priors(config, parameters, site, embedding, outputs, emitted)
    own = {name: parameters[f"residual.reads.{site}.{name}"] for name in read_parameters(site, layers, routes)}
    gain = parameters[f"residual.reads.{site}.gain"] if residual["gain"] else None

    def mix(query):
        return read(query, keys, values, priors, residual["eps"], gain)

    if not is_attention(site, layers):
        if "query_first" in own:
            return [(mix(own["query_first"]) + mix(own["query_second"])) / 2]
        return [mix(own["query"])]
    if routes in ("shared", "placebo"):
        return [mix(own["query"])] * 3
    if routes == "q_k_v":
        return [mix(own["query_q"]), mix(own["query_k"]), mix(own["query_v"])]
    mix_qk = mix(own["query_qk"])
    if routes == "tied":
        mix_v = mix(own["query_qk"])
    elif routes == "frozen_v":
        mix_v = mix(torch.zeros_like(own["query_qk"]))
    elif routes == "temperature":
        mix_v = mix(torch.exp(own["log_temperature"]) * own["query_qk"])
    else:
        mix_v = mix(own["query_v"])
    if routes == "average":
        return [(mix_qk + mix_v) / 2] * 3
    return [mix_qk, mix_qk, mix_v]


# ---------------------------------------------------------------------------------------------------- the whole network


def rotate(vectors, theta):
    """RoPE in Llama's layout: coordinates i and i + head_width / 2 are a pair. vectors: [batch, token, head_width]."""
    tokens, half = vectors.shape[1], vectors.shape[2] // 2
    first, second = [], []
    for i in range(half):
        angle = torch.arange(tokens, dtype=torch.float64) * theta ** (-2 * i / (2 * half))
        x, y = vectors[..., i], vectors[..., i + half]
        first.append(x * torch.cos(angle) - y * torch.sin(angle))
        second.append(y * torch.cos(angle) + x * torch.sin(angle))
    return torch.stack(first + second, dim=-1)


def attention(config, parameters, layer, inputs, documents):
    """inputs: the normed mixtures of roles q, k and v, each [batch, token, width]."""
    name = f"layers.{layer}.self_attn"
    width = config["head_width"]
    query, key, value = (x @ parameters[f"{name}.{role}_proj.weight"].T for role, x in zip("qkv", inputs, strict=True))

    tokens = query.shape[1]
    position = torch.arange(tokens)
    visible = (position[None, :] <= position[:, None]).expand(query.shape[0], tokens, tokens)
    if config["document_mask"] and documents is not None:
        visible = visible & (documents[:, None, :] == documents[:, :, None])

    def prepare(vectors, head, role):
        vectors = vectors[..., head * width : (head + 1) * width]
        if config["qk_norm"]:
            gain = parameters[f"{name}.{role}_norm.weight"] if config["norm_gain"] else None
            vectors = rms_norm(vectors, config["norm_eps"], gain)
        return rotate(vectors, config["rope_theta"])

    group = config["heads"] // config["kv_heads"]
    heads = []
    for head in range(config["heads"]):
        kv_head = head // group
        scores = prepare(query, head, "q") @ prepare(key, kv_head, "k").transpose(1, 2) / math.sqrt(width)
        scores = torch.where(visible, scores, -math.inf)
        exponentials = torch.exp(scores - scores.max(dim=-1, keepdim=True).values.detach())
        weights = exponentials / exponentials.sum(dim=-1, keepdim=True)
        heads.append(weights @ value[..., kv_head * width : (kv_head + 1) * width])
    return torch.cat(heads, dim=-1) @ parameters[f"{name}.o_proj.weight"].T


def mlp(parameters, layer, x):
    name = f"layers.{layer}.mlp"
    gate = x @ parameters[f"{name}.gate_proj.weight"].T
    up = x @ parameters[f"{name}.up_proj.weight"].T
    return (gate / (1 + torch.exp(-gate)) * up) @ parameters[f"{name}.down_proj.weight"].T


def network(config, parameters, tokens, documents=None):
    """Logits [batch, token, vocab]. tokens, documents: [batch, token], documents the index of each token's document."""
    check_parameters(config, parameters)
    layers, width = config["layers"], config["width"]

    def pre_norm(x, name):
        return rms_norm(x, config["norm_eps"], parameters[f"{name}.weight"] if config["norm_gain"] else None)

    embedding = parameters["embed_tokens.weight"][tokens]
    outputs, emitted = [], []
    for site in range(2 * layers):
        layer = site // 2
        inputs = sublayer_inputs(config, parameters, site, embedding, outputs, emitted)
        if is_attention(site, layers):
            normed = [pre_norm(x, f"layers.{layer}.input_layernorm") for x in inputs]
            product = attention(config, parameters, layer, normed, documents)
        else:
            product = mlp(parameters, layer, pre_norm(inputs[0], f"layers.{layer}.post_attention_layernorm"))
        outputs.append(product[..., :width])
        if is_projected(config):
            emitted.append(rms_norm(product[..., width:], config["residual"]["eps"]))
    readout = sublayer_inputs(config, parameters, 2 * layers, embedding, outputs, emitted)[0]
    head = parameters["embed_tokens.weight" if config["tied"] else "lm_head.weight"]
    return pre_norm(readout, "norm") @ head.T


def parameter_shapes(config):
    """Every parameter's name and shape."""
    width, hidden, layers, residual = config["width"], config["hidden"], config["layers"], config["residual"]
    heads, kv_heads = config["heads"] * config["head_width"], config["kv_heads"] * config["head_width"]
    rows = width + (key_rank(config) if is_projected(config) else 0)
    shapes = {"embed_tokens.weight": (config["vocab"], width)}
    for layer in range(layers):
        name = f"layers.{layer}"
        if config["norm_gain"]:
            shapes[f"{name}.input_layernorm.weight"] = (width,)
            shapes[f"{name}.post_attention_layernorm.weight"] = (width,)
            if config["qk_norm"]:
                shapes[f"{name}.self_attn.q_norm.weight"] = (config["head_width"],)
                shapes[f"{name}.self_attn.k_norm.weight"] = (config["head_width"],)
        shapes[f"{name}.self_attn.q_proj.weight"] = (heads, width)
        shapes[f"{name}.self_attn.k_proj.weight"] = (kv_heads, width)
        shapes[f"{name}.self_attn.v_proj.weight"] = (kv_heads, width)
        shapes[f"{name}.self_attn.o_proj.weight"] = (rows, heads)
        shapes[f"{name}.mlp.gate_proj.weight"] = (hidden, width)
        shapes[f"{name}.mlp.up_proj.weight"] = (hidden, width)
        shapes[f"{name}.mlp.down_proj.weight"] = (rows, hidden)
    if config["norm_gain"]:
        shapes["norm.weight"] = (width,)
    if not config["tied"]:
        shapes["lm_head.weight"] = (config["vocab"], width)
    if residual["name"] == "additive":
        return shapes

    rank = key_rank(config)
    for site in range(1, 2 * layers + 1):
        for name in read_parameters(site, layers, residual["routes"]):
            shapes[f"residual.reads.{site}.{name}"] = () if name == "log_temperature" else (rank,)
        if residual["gain"]:
            shapes[f"residual.reads.{site}.gain"] = (rank,)
    if is_projected(config):
        shapes["residual.embedding_key.weight"] = (rank, width)
    return shapes


def check_parameters(config, parameters):
    """A name missing or left over, another shape or dtype is an error: an ignored parameter would hide a difference."""
    shapes = parameter_shapes(config)
    if parameters.keys() != shapes.keys():
        raise ValueError(f"names not in both: {sorted(parameters.keys() ^ shapes.keys())}")
    for name, parameter in parameters.items():
        if tuple(parameter.shape) != shapes[name] or parameter.dtype != torch.float64:
            raise ValueError(f"{name}: {parameter.dtype} {tuple(parameter.shape)}, expected fp64 {shapes[name]}")
