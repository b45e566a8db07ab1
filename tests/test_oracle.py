"""The oracle against a hand-made PreNorm network, and its own identities."""

import math

import oracle
import pytest
import torch
import torch.nn.functional as F
from oracle_networks import KEYS, SOURCES, WIDTH, assert_same, attnres, draw, draw_tokens, pre_norm_network, tiny


def test_lse_is_the_normaliser_and_its_gradient_is_the_weights():
    generator = torch.Generator().manual_seed(0)
    keys = [torch.randn(2, 4, generator=generator, dtype=torch.float64) for _ in range(3)]
    query = torch.randn(4, generator=generator, dtype=torch.float64)
    priors = [torch.tensor(prior, dtype=torch.float64, requires_grad=True) for prior in (0.1, -0.4, 1.3)]
    mixed, lse = oracle.read_with_lse(query, keys, keys, priors, 1e-6)
    logits = (F.rms_norm(torch.stack(keys), (4,), eps=1e-6) @ query) + torch.stack(priors)[:, None]
    assert_same(lse, logits.logsumexp(0))
    assert_same(mixed, torch.einsum("st,std->td", logits.softmax(0), torch.stack(keys)))
    gradients = torch.stack(torch.autograd.grad(lse.sum(), priors))
    assert_same(gradients, logits.softmax(0).sum(-1).detach())

    shifted, shifted_lse = oracle.read_with_lse(query, keys, keys, [prior + 800 for prior in priors], 1e-6)
    assert_same(shifted, mixed)
    assert_same(shifted_lse, lse + 800)


def test_a_read_refuses_anything_but_fp64():
    with pytest.raises(TypeError, match="fp64"):
        oracle.read(torch.zeros(4), [torch.ones(4)], [torch.ones(4)], None, 0.0)


def test_a_block_has_the_scaled_sum_as_value_and_the_sum_of_normalised_keys_as_projected_key():
    def rows(*numbers):
        return [torch.tensor(row, dtype=torch.float64) for row in numbers]

    config = tiny(attnres({"block_sublayers": 2}, {"projected": 2}, alpha=0.5, beta=0.25), width=3)
    parameters = {"residual.embedding_key.weight": torch.stack(rows([3.0, 0.0, 0.0], [0.0, 4.0, 0.0]))}
    [embedding] = rows([1.0, 1.0, 7.0])
    outputs = rows([1.0, 2.0, 3.0], [5.0, 6.0, 7.0], [9.0, 8.0, 7.0])
    emitted = rows([1.0, 0.0], [0.0, 1.0], [1.0, 1.0])
    keys, values, priors = oracle.keys_values_priors(config, parameters, 3, embedding, outputs, emitted)
    assert_same(torch.stack(values), torch.stack([embedding, (outputs[0] + outputs[1]) / math.sqrt(2), outputs[2]]))
    assert_same(torch.stack(keys), torch.stack(rows([0.6 * 2**0.5, 0.8 * 2**0.5], [1.0, 1.0], [1.0, 1.0])))
    assert priors == [0.0, 0.25 * math.log(2), 0.0]

    subset = {"subset": {"rank": 2, "seed": 0}}  # torch.randperm(3) of this seed is 2, 0, 1
    for keys, picked in [("value", [0, 1, 2]), ({"sliced": 2}, [1, 2]), (subset, [0, 2])]:
        config["residual"]["keys"] = keys
        found, values, _ = oracle.keys_values_priors(config, {}, 3, embedding, outputs, [])
        assert torch.equal(torch.stack(found), torch.stack(values)[:, picked])


@pytest.mark.parametrize(
    ("routes", "order"), [("qk_v", ["qk", "qk", "v"]), ("q_k_v", ["q", "k", "v"]), ("tied", ["qk"] * 3)]
)
def test_each_role_is_fed_the_mixture_of_its_own_query_and_gain(routes, order):
    config = tiny(attnres(routes=routes, gain=True, eps=1e-6))
    parameters = draw(config)
    embedding, *outputs = torch.randn(5, 2, WIDTH, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = oracle.sublayer_inputs(config, parameters, 4, embedding, outputs, [])
    sources = torch.stack([embedding, *outputs])
    normalised = parameters["residual.reads.4.gain"] * F.rms_norm(sources, (WIDTH,), eps=1e-6)
    for mixed, route in zip(found, order, strict=True):
        weights = (normalised @ parameters[f"residual.reads.4.query_{route}"]).softmax(0)
        assert_same(mixed, torch.einsum("st,std->td", weights, sources))


# ------------------------------------------------------------------------------------------------- whole networks


@pytest.mark.parametrize("routes", oracle.ROUTES)
@pytest.mark.parametrize("keys", KEYS, ids=str)
@pytest.mark.parametrize("sources", SOURCES, ids=str)
def test_at_zero_queries_every_member_of_the_family_is_the_pre_norm_network(sources, keys, routes):
    config = tiny(attnres(sources, keys, routes))
    parameters = draw(config, zero_queries=True)
    tokens = draw_tokens(config)
    assert_same(oracle.network(config, parameters, tokens), pre_norm_network(config, parameters, tokens))


@pytest.mark.parametrize("routes", oracle.ROUTES)
def test_at_zero_queries_equal_alpha_and_beta_still_give_the_pre_norm_network(routes):
    config = tiny(attnres({"blocks": 4}, {"projected": 5}, routes, alpha=0.7, beta=0.7, gain=True))
    parameters = draw(config, zero_queries=True)
    tokens = draw_tokens(config)
    assert_same(oracle.network(config, parameters, tokens), pre_norm_network(config, parameters, tokens))


@pytest.mark.parametrize("norm_gain", [False, True])
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_the_additive_network_is_the_pre_norm_network_under_every_switch(norm_gain, qk_norm, tied):
    switches = {"norm_gain": norm_gain, "qk_norm": qk_norm, "tied": tied, "document_mask": True, "norm_eps": 1e-3}
    config = tiny({"name": "additive"}, **switches)
    parameters = draw(config)
    tokens = draw_tokens(config)
    documents = torch.tensor([[0, 0, 1, 1, 1, 2], [3, 3, 3, 3, 0, 0]])
    assert_same(
        oracle.network(config, parameters, tokens, documents), pre_norm_network(config, parameters, tokens, documents)
    )


def test_a_masked_document_is_predicted_as_if_it_stood_alone():
    config = tiny(attnres({"blocks": 4}, routes="qk_v"), document_mask=True)
    parameters = draw(config)
    tokens = draw_tokens(config)
    packed = oracle.network(config, parameters, tokens, torch.tensor([[0, 0, 1, 1, 1, 1]] * 2))
    assert_same(packed[:, 2:], oracle.network(config, parameters, tokens[:, 2:]))
    assert (packed - oracle.network(config, parameters, tokens)).abs().max() > 1e-3


@pytest.mark.parametrize("keys", KEYS, ids=str)
def test_trained_queries_leave_the_pre_norm_network_and_blocks_of_one_are_full(keys):
    config = tiny(attnres("full", keys, "qk_v", gain=True))
    parameters = draw(config)
    tokens = draw_tokens(config)
    full = oracle.network(config, parameters, tokens)
    assert (full - pre_norm_network(config, parameters, tokens)).abs().max() > 1e-3
    for sources in ({"blocks": 6}, {"block_sublayers": 1}):
        blocks = tiny(attnres(sources, keys, "qk_v", gain=True))
        assert torch.equal(full, oracle.network(blocks, parameters, tokens))


@pytest.mark.parametrize("routes", ["qk_v", "q_k_v", "tied", "average", "placebo", "temperature"])
def test_equal_queries_on_every_route_give_the_shared_network(routes):
    parent = tiny(attnres({"blocks": 4}))
    variant = tiny(attnres({"blocks": 4}, routes=routes))
    common = draw(parent)
    parameters = {}
    for name, shape in oracle.parameter_shapes(variant).items():
        if name.endswith("log_temperature"):
            parameters[name] = torch.zeros(shape, dtype=torch.float64)
        else:
            parent_name = name.rsplit(".", 1)[0] + ".query" if ".reads." in name else name
            parameters[name] = common[parent_name]
    tokens = draw_tokens(parent)
    assert_same(oracle.network(variant, parameters, tokens), oracle.network(parent, common, tokens))


@pytest.mark.parametrize("routes", ["qk_v", "q_k_v"])
def test_over_a_single_token_only_the_value_route_reaches_the_output(routes):
    config = tiny(attnres({"blocks": 4}, routes=routes))
    parameters = draw(config)
    oracle.network(config, parameters, draw_tokens(config, tokens=1)).square().sum().backward()
    for site in (2, 4):
        for name in oracle.read_parameters(site, 3, routes):
            gradient = parameters[f"residual.reads.{site}.{name}"].grad.abs().max()
            assert gradient > 1e-3 if name == "query_v" else gradient < 1e-9


def test_a_frozen_value_route_is_a_zero_value_query():
    frozen, free = tiny(attnres({"blocks": 4}, routes="frozen_v")), tiny(attnres({"blocks": 4}, routes="qk_v"))
    parameters = draw(frozen)
    zeros = {f"residual.reads.{site}.query_v": torch.zeros(WIDTH, dtype=torch.float64) for site in (2, 4)}
    tokens = draw_tokens(frozen)
    assert torch.equal(oracle.network(frozen, parameters, tokens), oracle.network(free, parameters | zeros, tokens))


def test_a_temperature_multiplies_the_query_of_the_value_route():
    scaled, free = tiny(attnres({"blocks": 4}, routes="temperature")), tiny(attnres({"blocks": 4}, routes="qk_v"))
    parameters = draw(scaled)
    others = dict(parameters)
    for site in (2, 4):
        temperature = torch.exp(others.pop(f"residual.reads.{site}.log_temperature"))
        others[f"residual.reads.{site}.query_v"] = temperature * parameters[f"residual.reads.{site}.query_qk"]
    tokens = draw_tokens(scaled)
    assert_same(oracle.network(scaled, parameters, tokens), oracle.network(free, others, tokens))


@pytest.mark.parametrize("keys", KEYS, ids=str)
@pytest.mark.parametrize("routes", oracle.ROUTES)
def test_equal_alpha_and_beta_change_nothing_unless_two_mixtures_are_averaged(keys, routes):
    plain = tiny(attnres({"blocks": 2}, keys, routes))
    scaled = tiny(attnres({"blocks": 2}, keys, routes, alpha=1.0, beta=1.0))
    parameters = draw(plain)
    tokens = draw_tokens(plain)
    left, right = oracle.network(scaled, parameters, tokens), oracle.network(plain, parameters, tokens)
    if routes in ("average", "placebo"):
        assert (left - right).abs().max() > 1e-6
    else:
        assert_same(left, right)


def test_mean_blocks_with_a_log_count_prior_are_full_at_zero_queries():
    full, blocks = tiny(attnres()), tiny(attnres({"blocks": 2}, alpha=1.0, beta=1.0))
    parameters = draw(full, zero_queries=True)
    embedding = torch.ones(1, WIDTH, dtype=torch.float64)
    outputs = list(torch.randn(4, 1, WIDTH, generator=torch.Generator().manual_seed(2), dtype=torch.float64))
    for site in (1, 2, 3, 4):
        left = oracle.sublayer_inputs(full, parameters, site, embedding, outputs[:site], [])
        right = oracle.sublayer_inputs(blocks, parameters, site, embedding, outputs[:site], [])
        assert_same(left[0], right[0])


def test_an_emitted_key_forgets_its_length_before_it_is_summed():
    config = tiny(attnres({"blocks": 2}, {"projected": 5}), norm_eps=1e-3)
    parameters = draw(config)
    tokens = draw_tokens(config)
    longer = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    longer["layers.0.self_attn.o_proj.weight"][WIDTH:] *= 7
    longer["layers.1.mlp.down_proj.weight"][WIDTH:] *= 0.1
    longer["residual.embedding_key.weight"] *= 7
    assert_same(oracle.network(config, longer, tokens), oracle.network(config, parameters, tokens))


@pytest.mark.parametrize("routes", oracle.ROUTES)
def test_every_parameter_receives_a_gradient_and_a_wrong_set_of_names_is_refused(routes):
    residual = attnres({"blocks": 4}, {"projected": 5}, routes, alpha=0.5, beta=0.2, gain=True, eps=1e-6)
    config = tiny(residual, norm_gain=True)
    parameters = draw(config)
    tokens = draw_tokens(config)
    # A plain sum of squares would be nearly constant where a norm precedes the head.
    oracle.network(config, parameters, tokens).pow(3).sum().backward()
    for name, parameter in parameters.items():
        assert parameter.grad.abs().max() > 0, name
    del parameters["residual.reads.3.gain"]
    with pytest.raises(ValueError, match=r"residual\.reads\.3\.gain"):
        oracle.network(config, parameters, tokens)
