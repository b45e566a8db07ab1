"""What a trace says, against the same numbers taken from weights that are all kept."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from networks import ADDITIVE, EVERY, LAYERS, attnres, describe, initial, moved, tokens

from depthroute import presets
from depthroute.errors import ArgumentError
from depthroute.model.transformer import Observer
from depthroute.ops import logits
from depthroute.probe import Tracer, measures, trace
from depthroute.probe.gradients import gradient_norms
from depthroute.probe.subject import Tokens

PRESETS = [presets.residual(name, rank=4 if preset.rank else None) for name, preset in presets.PRESETS.items()]
RD = attnres({"blocks": 2}, "value", "qk_v")


class Keeping(Observer):
    """Keeps everything that it sees."""

    def __init__(self, model):
        self.model, self.sites, self.weights, self.mixed, self.values, self.outputs = model, [], {}, {}, {}, {}

    def read(self, site, state, mixed):
        self.sites.append(site)
        self.mixed[site] = mixed
        reading = self.model.residual.reading(state, site)
        if reading is not None:
            scores = logits(reading.queries, reading.keys, reading.prior, eps=reading.eps)
            self.weights[site], self.values[site] = scores.softmax(1), torch.stack([*reading.values])
            again = reading.feed(torch.einsum("qsbt,sbtd->qbtd", self.weights[site], self.values[site]))
            torch.testing.assert_close(again, mixed, rtol=0, atol=1e-12)

    def wrote(self, site, value):
        self.outputs[site] = value


@pytest.mark.parametrize("residual", PRESETS, ids=list(presets.PRESETS))
def test_logits_are_the_same_to_the_bit_with_an_observer(residual):
    model = moved(residual).float()
    seen = Keeping(moved(residual))
    seen.model(tokens(), observer=seen)
    assert seen.sites == list(range(2 * LAYERS + 1))
    assert list(seen.outputs) == list(range(2 * LAYERS))
    documents = torch.zeros(2, 5, dtype=torch.int64)
    with Tracer(model, 1) as tracer:
        assert torch.equal(tracer.add(tokens(), documents), model(tokens()))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("residual", EVERY, ids=describe)
def test_weights_of_every_combination_mix_the_values_into_what_the_site_was_fed(residual):
    model = moved(residual)
    seen = Keeping(model)
    model(tokens(), observer=seen)
    assert seen.weights.keys() == set(range(1, 2 * LAYERS + 1))
    for site, weights in seen.weights.items():
        labels = model.residual.labels(site)
        assert weights.shape[:2] == (len(labels.routes), len(labels.sources))
        assert len(set(labels.sources)) == len(labels.sources)


def test_a_gain_and_a_prior_are_in_the_weights():
    model = moved(attnres({"blocks": 2}, routes="qk_v", gain=True, alpha=0.5, beta=0.7))
    model(tokens(), observer=Keeping(model))


@pytest.fixture(scope="module")
def model():
    return moved(RD)


@pytest.fixture(scope="module")
def documents():
    return torch.tensor([[0, 0, 0, 2, 2], [2, 2, 3, 3, 3]])


@pytest.fixture(scope="module")
def kept(model):
    seen = Keeping(model)
    with torch.no_grad():
        model(tokens(), observer=seen)
    return {site: weights.flatten(2) for site, weights in seen.weights.items()}, seen


@pytest.fixture(scope="module")
def traced(model, documents):
    """Row by row, to see that batches add up."""
    with Tracer(model, 5) as tracer:
        for row in range(2):
            tracer.add(tokens()[row : row + 1], documents[row : row + 1])
        return tracer.finish()


def close(found, expected, digits=1e-12):
    assert found == pytest.approx(float(torch.as_tensor(expected).detach()), abs=digits)


def test_means_deviations_and_quantiles_are_those_of_all_weights(model, kept, traced):
    rows = {(row["site"], row["route"], row["source"]): row for row in traced.table("weights")}
    assert len(rows) == sum(weights[:, :, 0].numel() for weights in kept[0].values())
    for site, weights in kept[0].items():
        labels = model.residual.labels(site)
        for q, route in enumerate(labels.routes):
            for s, source in enumerate(labels.sources):
                row, every = rows[site, route, source], weights[q, s]
                close(row["mean"], every.mean())
                close(row["sd"], every.std(correction=0))
                single = every.float().double()
                for key, q_ in (("q00", 0), ("q05", 0.05), ("q50", 0.5), ("q95", 0.95), ("q100", 1)):
                    close(row[key], np.quantile(single, q_))
                close(row["source_rms"], measures.rms(kept[1].values[site][s]).mean())
                assert row["distance"] == len(labels.sources) - 1 - s


def test_entropies_shares_and_effective_sources_are_those_of_all_weights(model, kept, traced):
    rows = {(row["site"], row["route"]): row for row in traced.table("reads")}
    for site, weights in kept[0].items():
        labels = model.residual.labels(site)
        for q, route in enumerate(labels.routes):
            row, every = rows[site, route], weights[q].T
            mean = every.mean(0)
            close(row["entropy"], measures.entropy(every).mean())
            close(row["effective"], measures.entropy(every).exp().mean())
            close(row["effective_squares"], (1 / every.square().sum(-1)).mean())
            close(row["effective_of_mean"], measures.entropy(mean).exp())
            close(row["effective_squares_of_mean"], 1 / mean.square().sum())
            close(row["on_embedding"], mean[0])
            assert (row["on_live"] is None) == (not labels.live)
            assert not labels.live or row["on_live"] == pytest.approx(mean[-1].item())
            close(
                row["token_dependence"],
                every.var(0, correction=0).sum() / (every - 1 / len(mean)).square().sum(1).mean(),
            )
            query = model.residual.reads[str(site)].queries()[q]
            close(row["query_norm"], query.norm())
            close(row["query_participation"], query.square().sum() ** 2 / query.pow(4).sum())


def test_divergences_are_token_means_with_intervals_over_documents(model, kept, traced, documents):
    rows = {row["site"]: row for row in traced.table("divergence")}
    assert list(rows) == [2, 4]
    per_token = {}
    for site, row in rows.items():
        weights = kept[0][site]
        per_token[site] = measures.jensen_shannon(weights[0].T, weights[1].T)
        close(row["mean"], per_token[site].mean())
        close(row["of_means"], measures.jensen_shannon(weights[0].mean(1), weights[1].mean(1)))
        assert row["low"] < row["mean"] < row["high"]
    together = torch.stack([*per_token.values()]).mean(0).numpy()
    flat = documents.flatten().numpy()
    expected = measures.over_documents(np.bincount(flat, together), np.bincount(flat))
    assert list(traced.summary["divergence"].values()) == pytest.approx(list(expected), abs=1e-12)
    assert traced.summary["documents"] == 3
    assert (traced.summary["sites"], traced.summary["sites_with_one_source"]) == (7, 1)


def test_rms_by_depth_is_that_of_mixtures_and_outputs(kept, traced):
    for row in traced.table("depth"):
        mixed = torch.stack([*kept[1].mixed[row["site"]]])
        close(row["mixture_rms"], measures.rms(mixed).mean())
        if row["site"] < 2 * LAYERS:
            close(row["output_rms"], measures.rms(kept[1].outputs[row["site"]]).mean())
        else:
            assert row["output_rms"] is None


def test_shares_by_distance_add_up_over_the_sites_of_a_route(traced):
    rows = [row for row in traced.table("distance") if row["route"] == "shared"]
    sites = {row["site"] for row in traced.table("weights") if row["route"] == "shared"}
    assert sum(row["share"] * row["sites"] for row in rows) == pytest.approx(len(sites))


def test_tied_routes_diverge_by_exactly_nothing():
    found = trace(moved(attnres(routes="tied")), tokens())
    assert {(row["mean"], row["low"], row["high"], row["of_means"]) for row in found.table("divergence")} == {(0,) * 4}


def test_a_model_at_its_start_reads_all_sources_alike():
    for row in trace(initial(RD), tokens()).table("reads"):
        assert row["effective"] == pytest.approx(row["sources"], rel=1e-12)
        assert row["on_embedding"] == pytest.approx(1 / row["sources"], rel=1e-12)
        assert (row["token_dependence"], row["query_norm"], row["query_participation"]) == (None, 0, None)


def test_a_residual_without_weights_says_so_and_shows_the_rest():
    found = trace(moved(ADDITIVE), tokens())
    assert found.summary["exposes_weights"] is False
    assert found.summary["divergence"] is None
    assert found.table("weights") == []
    totals = [row["mixture_rms"] for row in found.table("depth")]
    assert len(totals) == 2 * LAYERS + 1
    with pytest.raises(ArgumentError, match="table 'weight' does not exist"):
        found.table("weight")


def test_gradient_norms_are_those_of_the_mean_nll_of_the_whole_text(model):
    targets = tokens().roll(1, 1)
    documents = torch.zeros_like(targets)
    split = [Tokens(tokens()[row : row + 1], targets[row : row + 1], documents[row : row + 1]) for row in range(2)]
    found = gradient_norms(model, split, lambda done: None)
    assert all(parameter.grad is None for parameter in model.parameters())
    whole = moved(RD)
    torch.nn.functional.cross_entropy(whole(tokens()).flatten(0, 1), targets.flatten()).backward()
    rows = {(row["layer"], row["part"]): row["norm"] for row in found}
    attention = whole.layers[1].self_attn.parameters()
    close(rows[1, "attention"], sum(p.grad.square().sum() for p in attention) ** 0.5)
    reads = [whole.residual.reads[site].parameters() for site in ("2", "3")]
    close(rows[1, "depth reads"], sum(p.grad.square().sum() for part in reads for p in part) ** 0.5)
    close(rows[None, "depth reads"], whole.residual.reads["6"].query.grad.norm())
    close(sum(norm**2 for norm in rows.values()), sum(p.grad.square().sum() for p in whole.parameters()))


def test_the_three_lines_of_the_documentation_run_in_a_notebook():
    text = (Path(__file__).parents[1] / "docs/probes.md").read_text(encoding="utf-8")
    block = text.split("Three lines in a notebook look into it:")[1].split("`tokens` are ids")[0]
    lines = [line.strip() for line in block.strip().splitlines()]
    assert len(lines) == 3
    names = {"model": moved(RD), "tokens": tokens()}
    exec("\n".join(lines), names)
    assert [row["site_name"] for row in names["reads"]] == [
        *("mlp 0", "attention 1", "attention 1", "mlp 1", "attention 2", "attention 2", "mlp 2", "readout")
    ]


STREAM = """
import json, resource, sys, torch
from depthroute.model.transformer import ModelConfig, Transformer
from depthroute.probe import Tracer
torch.set_num_threads(1)
shape = {"vocab": 11, "width": 8, "layers": 24, "heads": 1, "hidden": 8}
shape["residual"] = {"name": "attnres", "sources": "full"}
model = Transformer(ModelConfig.parse(shape)).initialise(0)
tokens = torch.randint(11, (16, 64), generator=torch.Generator().manual_seed(0))
documents = torch.arange(16).unsqueeze(1).expand(16, 64)
peaks = []
with Tracer(model, 16) as tracer:
    for batch in range(int(sys.argv[1])):
        tracer.add(tokens, documents)
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    tracer.finish()
print(json.dumps([peaks[0], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""


def test_memory_does_not_grow_with_the_text():
    batches = 16
    answer = subprocess.run([sys.executable, "-c", STREAM, str(batches)], capture_output=True, text=True, check=True)
    after_one, at_the_end = json.loads(answer.stdout)
    every_weight = 4 * 1224 * 16 * 64 * batches
    assert at_the_end - after_one < every_weight / 4
