"""Interventions against models that are built as the intervention says, and where nothing may change, to the bit."""

import math

import pytest
import torch
from networks import ADDITIVE, LAYERS, VOCAB, attnres, initial, moved, tokens

from depthroute.errors import ArgumentError, ConfigError
from depthroute.model.transformer import Observer
from depthroute.probe.intervene import KINDS, intervene, reads, trials
from depthroute.probe.interventions import (
    Drop,
    KeyRank,
    KnockOut,
    Mean,
    Take,
    TopK,
    Unchanged,
    Uniform,
    intervened,
    softmax,
)
from depthroute.probe.subject import Tokens
from depthroute.probe.trace import trace

RD = attnres({"blocks": 2}, "value", "qk_v")
EVERYWHERE = frozenset(range(1, 2 * LAYERS + 1))
TIE = Take("tie v to qk", {"v": "qk"})
SWAP = Take("swap qk and v", {"qk": "v", "v": "qk"})


def changed(model, intervention, sites=EVERYWHERE):
    at = frozenset(site for site in sites if intervention.applies(model.residual.labels(site)))
    with torch.no_grad(), intervened(model, intervention, at):
        return model(tokens())


def same_bits(model, intervention):
    return torch.equal(changed(model, intervention), changed(model, Unchanged()))


def with_queries(model, change):
    """The same model with other queries: what an intervention should amount to."""
    with torch.no_grad():
        for read in model.residual.reads.values():
            if len(read.routes) == 2:
                change(read)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("keys", ["value", {"sliced": 3}, {"projected": 3}], ids=str)
def test_tying_and_swapping_tied_routes_changes_no_bit(dtype, keys):
    tied = moved(attnres({"blocks": 2}, keys, "tied")).to(dtype)
    equal = moved(attnres({"blocks": 2}, keys, "qk_v")).to(dtype)
    with_queries(equal, lambda read: read.query_v.copy_(read.query_qk))
    for model in (tied, equal):
        assert same_bits(model, TIE)
        assert same_bits(model, SWAP)
        assert same_bits(model, Take("tie qk to v", {"qk": "v"}))


def test_dropping_a_source_whose_prior_forces_its_weight_to_zero_changes_no_bit():
    # A block of three outputs has the prior -1e4 log 3, the embedding 0.
    model = moved(attnres({"blocks": 2}, routes="qk_v", beta=-1e4)).float()
    assert same_bits(model, Drop("block 1"))
    assert not same_bits(model, Drop("embedding"))


def test_keeping_as_many_sources_as_there_are_changes_no_bit():
    model = moved(attnres(routes="qk_v")).float()
    assert same_bits(model, TopK(2 * LAYERS + 1))
    assert not same_bits(model, TopK(1))


@pytest.mark.parametrize("scaling", [{}, {"alpha": 0.5, "beta": 0.5}], ids=["plain", "prior"])
def test_making_a_route_of_zero_queries_uniform_changes_no_bit(scaling):
    model = initial(attnres({"blocks": 2}, routes="qk_v", **scaling)).float()
    for route in ("qk", "v", "shared"):
        assert same_bits(model, Uniform(route))
    assert not same_bits(moved(RD), Uniform("v"))


def test_the_baseline_is_the_model_itself():
    for routes in ("shared", "qk_v", "q_k_v", "average", "placebo", "temperature"):
        model = moved(attnres({"blocks": 2}, {"projected": 3}, routes, gain=True))
        torch.testing.assert_close(changed(model, Unchanged()), model(tokens()), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("intervention", "change"),
    [
        (TIE, lambda read: read.query_v.copy_(read.query_qk)),
        (Take("tie qk to v", {"qk": "v"}), lambda read: read.query_qk.copy_(read.query_v)),
        (Uniform("v"), lambda read: read.query_v.zero_()),
        (Uniform("qk"), lambda read: read.query_qk.zero_()),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_change_of_queries_is_the_model_with_those_queries(intervention, change):
    assert torch.equal(changed(moved(RD), intervention), changed(with_queries(moved(RD), change), Unchanged()))


def test_swapping_is_the_model_with_swapped_queries():
    model = moved(RD)
    for read in model.residual.reads.values():
        if len(read.routes) == 2:
            read.query_qk, read.query_v = read.query_v, read.query_qk
    assert torch.equal(changed(moved(RD), SWAP), changed(model, Unchanged()))


def test_knocking_out_a_site_is_a_sublayer_that_writes_nothing():
    model = moved(RD)
    with torch.no_grad():
        model.layers[1].mlp.down_proj.weight.zero_()
    found = changed(moved(RD), KnockOut(None), frozenset([3]))
    torch.testing.assert_close(found, changed(model, Unchanged()), rtol=0, atol=1e-12)


def test_knocking_out_the_value_route_is_an_attention_without_values():
    model = moved(RD)
    with torch.no_grad():
        model.layers[1].self_attn.v_proj.weight.zero_()
    found = changed(moved(RD), KnockOut("v"), frozenset([2]))
    torch.testing.assert_close(found, changed(model, Unchanged()), rtol=0, atol=1e-12)


def reading_at(model, site):
    """The site's reading on the test's tokens, and its labels."""

    class Looking(Observer):
        found = None

        def read(self, at, state, mixed):
            if at == site:
                self.found = model.residual.reading(state, at)

        def wrote(self, at, value):
            pass

    looking = Looking()
    with torch.no_grad():
        model(tokens(), observer=looking)
    return looking.found, model.residual.labels(site)


def test_a_dropped_source_gives_its_weight_to_the_others_in_proportion():
    reading, labels = reading_at(moved(RD), 4)
    own, without = softmax(reading), Drop("embedding").weights(reading, 4, labels)
    assert without[:, 0].abs().max() == 0
    torch.testing.assert_close(without[:, 1:], own[:, 1:] / own[:, 1:].sum(1, keepdim=True), rtol=0, atol=1e-12)


def test_of_the_top_sources_the_largest_stay():
    reading, labels = reading_at(moved(attnres(routes="qk_v")), 4)
    own, kept = softmax(reading), TopK(2).weights(reading, 4, labels)
    assert (kept > 0).sum(1).unique().tolist() == [2]
    assert torch.equal(kept.argmax(1), own.argmax(1))
    torch.testing.assert_close(kept.sum(1), torch.ones_like(kept.sum(1)))


def test_the_mean_of_a_route_is_the_same_at_every_token_and_is_the_traced_one():
    model = moved(RD)
    means = {row["site"]: [] for row in trace(model, tokens()).table("weights")}
    for row in trace(model, tokens()).table("weights"):
        means[row["site"]].append(row["mean"])
    reading, labels = reading_at(model, 4)
    by_route = {
        site: torch.tensor(found).view(len(model.residual.labels(site).routes), -1) for site, found in means.items()
    }
    weights = Mean("v", by_route).weights(reading, 4, labels)
    assert weights[1].flatten(1).std(1).max() == 0
    torch.testing.assert_close(weights[1].flatten(1)[:, 0], softmax(reading)[1].flatten(1).mean(1), rtol=0, atol=1e-6)
    assert torch.equal(weights[0], softmax(reading)[0])


def test_truncated_queries_score_keys_of_that_rank():
    model = moved(RD)
    reading, labels = reading_at(model, 4)
    stacked = torch.cat([read.queries() for read in model.residual.reads.values()]).detach()
    basis = torch.linalg.svd(stacked).Vh
    projection = basis[:2].T @ basis[:2]
    normed = [torch.nn.functional.rms_norm(key, key.shape[-1:], eps=1e-6) for key in reading.keys]
    scores = torch.stack([torch.einsum("qr,btr->qbt", reading.queries, key @ projection) for key in normed], 1)
    found = KeyRank(basis[:2]).weights(reading, 4, labels)
    torch.testing.assert_close(found, scores.softmax(1), rtol=0, atol=1e-12)
    whole = KeyRank(basis).weights(reading, 4, labels)
    torch.testing.assert_close(whole, softmax(reading), rtol=0, atol=1e-12)


def test_a_model_comes_back_as_it_was():
    model = moved(RD)
    before, trained = {name: value.clone() for name, value in model.state_dict().items()}, model.residual
    changed(model, KnockOut(None))
    with pytest.raises(ZeroDivisionError), intervened(model, TIE, EVERYWHERE):
        raise ZeroDivisionError
    assert model.residual is trained
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def text_of(rows, batch=4):
    """Rows of tokens as a text whose documents they are."""
    numbers = torch.arange(len(rows)).unsqueeze(1).expand(len(rows), rows.shape[1] - 1)

    def batches():
        for start in range(0, len(rows), batch):
            part = slice(start, start + batch)
            yield Tokens(rows[part, :-1], rows[part, 1:], numbers[part])

    return batches, len(rows)


def test_the_one_route_that_was_trained_to_matter_is_found():
    model = initial(RD).float()
    rows = torch.randint(VOCAB, (12, 17), generator=torch.Generator().manual_seed(3))
    planted = model.residual.reads["4"].query_v
    optimizer = torch.optim.Adam([planted], lr=0.3)
    for _ in range(40):
        nll = torch.nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        nll.backward()
        optimizer.step()
    found = intervene(model, *text_of(rows), ["uniform"])
    changes = {(row["intervention"], row["site"]): row for row in found["changes"]}
    assert changes["uniform v", 4]["low"] > 0
    assert changes["uniform v", None]["change"] == changes["uniform v", 4]["change"]
    others = {key: row for key, row in changes.items() if key not in {("uniform v", 4), ("uniform v", None)}}
    assert len(others) >= 8
    assert all(row["same_bits"] and (row["change"], row["low"], row["high"]) == (0, 0, 0) for row in others.values())
    assert found["baseline"] == pytest.approx(found["nll"], abs=1e-5)


def test_every_kind_is_tried_at_every_site_that_has_what_it_changes_and_at_all():
    model = moved(RD)
    sites = reads(model)
    assert list(sites) == sorted(EVERYWHERE)
    queries = {site: model.residual.reads[str(site)].queries().detach() for site in sites}
    tried = trials(sites, queries, {}, KINDS, each=True)
    of = {}
    for trial in tried:
        of.setdefault(trial.intervention.name, []).append(sorted(trial.sites))
    assert of["tie v to qk"] == of["swap qk and v"] == of["uniform v"] == [[2, 4], [2], [4]]
    assert of["knock out"] == [[1, 2, 3, 4, 5, 6], *([site] for site in range(1, 7))]
    assert of["uniform shared"][0] == [1, 3, 5, 6]
    assert of["drop embedding"][0] == [1, 2, 3, 4, 5, 6]
    assert of["drop live sum"][0] == [1, 2, 4, 5]
    assert {"top 1", "top 2", "key rank 1", "key rank 4", "drop block 1", "drop block 2", "mean v"} <= of.keys()
    assert {trial.kind for trial in tried} == set(KINDS)
    together = trials(sites, queries, {}, KINDS, each=False)
    assert len(together) == len(of)


def test_what_cannot_be_changed_is_said():
    rows = torch.randint(VOCAB, (3, 6))
    with pytest.raises(ArgumentError, match="residual 'additive' exposes no depth weights"):
        intervene(moved(ADDITIVE), *text_of(rows))
    with pytest.raises(ArgumentError, match="every site has one route, so there is nothing to change by tie, swap"):
        intervene(moved(attnres()), *text_of(rows), ["tie", "swap"])
    with pytest.raises(ConfigError, match=r"--what ties: no such intervention \(did you mean 'tie'"):
        intervene(moved(RD), *text_of(rows), ["ties"])
    with pytest.raises(ArgumentError, match="the norm of a zero mixture is 0 / 0"):
        intervene(moved(RD, norm_eps=0.0), *text_of(rows), ["knock-out"])


def test_changes_are_finite_for_all_kinds_and_keep_their_interval():
    rows = torch.randint(VOCAB, (6, 6), generator=torch.Generator().manual_seed(0))
    found = intervene(moved(RD), *text_of(rows))
    assert all(math.isfinite(row["change"]) and row["low"] <= row["change"] <= row["high"] for row in found["changes"])
    assert (found["tokens"], found["documents"]) == (30, 6)
