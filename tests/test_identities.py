"""The identities of the family, as sentences. All in fp64."""

import pytest
import torch
from networks import ADDITIVE, EVERY, KEYS, ROUTES, SOURCES, WIDTH, attnres, describe, initial, moved, tokens
from torch.testing import assert_close

from depthroute.residuals.attnres import routes as routes_module


def copy_common(target: torch.nn.Module, source: torch.nn.Module) -> None:
    """Give `target` every parameter that `source` has under the same name and shape."""
    theirs = dict(source.named_parameters())
    with torch.no_grad():
        for name, parameter in target.named_parameters():
            if name in theirs and theirs[name].shape == parameter.shape:
                parameter.copy_(theirs[name])


def loss(model: torch.nn.Module) -> torch.Tensor:
    logits = model(tokens())
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens()[:, 1:].flatten())


@pytest.mark.parametrize("residual", EVERY, ids=describe)
def test_at_zero_queries_every_network_is_the_prenorm_network(residual):
    prenorm = initial(ADDITIVE, norm_eps=0.0)
    member = initial(residual | {"eps": 0.0}, norm_eps=0.0)
    assert_close(member(tokens()), prenorm(tokens()), rtol=0, atol=1e-12)


@pytest.mark.parametrize("keys", KEYS, ids=describe)
@pytest.mark.parametrize("routes", ROUTES)
def test_full_is_blocks_of_one_exactly(keys, routes):
    full = moved(attnres("full", keys, routes))(tokens())
    assert torch.equal(full, moved(attnres({"blocks": 6}, keys, routes))(tokens()))
    assert torch.equal(full, moved(attnres({"block_sublayers": 1}, keys, routes))(tokens()))


def test_one_block_is_not_prenorm():
    block = moved(attnres({"blocks": 1}))
    prenorm = initial(ADDITIVE)
    copy_common(prenorm, block)
    assert (block(tokens()) - prenorm(tokens())).abs().max() > 1e-3


def test_a_block_of_layers_is_a_block_of_twice_as_many_sublayers():
    layers = moved(attnres({"block_layers": 2}))(tokens())
    assert torch.equal(layers, moved(attnres({"block_sublayers": 4}))(tokens()))


@pytest.mark.parametrize("sources", SOURCES, ids=describe)
@pytest.mark.parametrize("routes", ["shared", "qk_v"])
def test_sliced_keys_of_full_rank_are_value_keys(sources, routes):
    value = moved(attnres(sources, "value", routes))(tokens())
    assert torch.equal(value, moved(attnres(sources, {"sliced": WIDTH}, routes))(tokens()))
    every = attnres(sources, {"subset": {"rank": WIDTH, "seed": 3}}, routes)
    assert torch.equal(value, moved(every)(tokens()))


@pytest.mark.parametrize("keys", KEYS, ids=describe)
@pytest.mark.parametrize("sources", SOURCES, ids=describe)
def test_all_role_variants_agree_bit_for_bit_at_initialisation(sources, keys):
    logits = [initial(attnres(sources, keys, routes))(tokens()) for routes in ROUTES]
    assert all(torch.equal(logits[0], other) for other in logits[1:])


def test_tied_follows_shared_over_twenty_steps_while_it_executes_two_reads(monkeypatch):
    rows = {"shared": 0, "tied": 0}
    executed = routes_module.attend

    def counted(queries, *arguments, **options):
        rows[running] += queries.shape[0]
        return executed(queries, *arguments, **options)

    monkeypatch.setattr(routes_module, "attend", counted)
    losses = {}
    for running in rows:
        model = initial(attnres({"blocks": 2}, routes=running))
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses[running] = []
        for _ in range(20):
            optimizer.zero_grad()
            step = loss(model)
            step.backward()
            optimizer.step()
            losses[running].append(step.item())
    assert losses["tied"] == pytest.approx(losses["shared"], abs=1e-9)
    assert losses["tied"][-1] < losses["tied"][0] - 0.05
    # Six sites have a query; two of them feed attentions, and only those are read twice.
    assert rows == {"shared": 20 * 6, "tied": 20 * (6 + 2)}


@pytest.mark.parametrize("routes", ["qk_v", "tied", "q_k_v"])
def test_equal_queries_make_the_decoupled_network_its_parent(routes):
    decoupled = moved(attnres({"blocks": 2}, routes=routes))
    parent = moved(attnres({"blocks": 2}))
    copy_common(parent, decoupled)
    with torch.no_grad():
        for site in (2, 4):
            for query in decoupled.residual.reads[str(site)].parameters():
                query.copy_(parent.residual.reads[str(site)].query)
    assert_close(decoupled(tokens()), parent(tokens()), rtol=1e-12, atol=1e-12)


# Average and placebo add two mixtures that alpha = beta scales by different factors.
@pytest.mark.parametrize("routes", [name for name in ROUTES if name not in ("average", "placebo")])
@pytest.mark.parametrize("keys", ["value", {"sliced": 3}, {"subset": {"rank": 3, "seed": 5}}], ids=describe)
def test_equal_alpha_and_beta_give_the_network_of_plain_sums(routes, keys):
    plain = initial(attnres({"blocks": 2}, keys, routes, eps=0.0), norm_eps=0.0)
    scaled = initial(attnres({"blocks": 2}, keys, routes, eps=0.0, alpha=0.8, beta=0.8), norm_eps=0.0)
    nudged = moved(attnres({"blocks": 2}, keys, routes))
    copy_common(plain, nudged)
    copy_common(scaled, nudged)
    assert_close(scaled(tokens()), plain(tokens()), rtol=0, atol=1e-11)


def test_mean_blocks_with_a_log_count_prior_at_zero_queries_are_full_at_zero_queries():
    means = initial(attnres({"blocks": 2}, alpha=1.0, beta=1.0))
    assert_close(means(tokens()), initial(attnres("full"))(tokens()), rtol=0, atol=1e-12)


@pytest.mark.parametrize("keys", KEYS, ids=describe)
@pytest.mark.parametrize("routes", [name for name in ROUTES if name != "frozen_v"])
def test_every_route_is_alive(routes, keys):
    model = moved(attnres({"blocks": 4}, keys, routes))
    loss(model).backward()
    before = model(tokens())
    for name, parameter in model.residual.named_parameters():
        assert parameter.grad.abs().max() > 1e-9, f"{name} receives no gradient"
        with torch.no_grad():
            parameter += 0.5
            assert (model(tokens()) - before).abs().max() > 1e-9, f"{name} does not change the output"
            parameter -= 0.5


def test_the_frozen_value_route_owns_nothing_and_reads_the_mean():
    model = moved(attnres("full", routes="frozen_v"))
    names = [name for name, _ in model.residual.reads["2"].named_parameters()]
    values = tuple(torch.randn(1, 4, WIDTH, dtype=torch.float64) for _ in range(3))
    mixed_qk, mixed_v = model.residual.reads["2"](None, values, None)
    assert names == ["query_qk"]
    assert_close(mixed_v, torch.stack(values).mean(0))
    assert (mixed_qk - mixed_v).abs().max() > 1e-3


@pytest.mark.parametrize("residual", [ADDITIVE, *EVERY[::7]], ids=describe)
def test_the_output_at_a_token_does_not_depend_on_later_tokens(residual):
    model = moved(residual)
    ids = tokens()
    before = model(ids)
    ids[:, 3] = (ids[:, 3] + 1) % 11
    after = model(ids)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3], after[:, 3])


def test_attention_never_crosses_a_document_when_the_mask_is_on():
    model = moved(attnres({"blocks": 2}, routes="qk_v"), document_mask=True)
    documents = torch.tensor([[0, 0, 1, 1, 1]] * 2)
    ids = tokens()
    before = model(ids, documents)
    ids[:, 1] = (ids[:, 1] + 1) % 11
    after = model(ids, documents)
    assert torch.equal(before[:, 2:], after[:, 2:])
    assert not torch.equal(before[:, 1], after[:, 1])
