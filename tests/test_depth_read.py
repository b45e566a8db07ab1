"""The layer alone: what `import depthroute as dr` gives to someone with a model of their own."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import depthroute as dr
from depthroute.residuals.attnres.routes import QkV

ROOT = Path(__file__).parents[1]
WIDTH = 8


def sources(count: int, width: int = WIDTH, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 3, width, generator=generator, dtype=torch.float64) for _ in range(count)]


def moved(read: dr.DepthRead, seed: int = 1) -> dr.DepthRead:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in read.double().parameters():
            parameter += torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return read


@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 5), rank=st.integers(1, WIDTH), routes=st.integers(1, 3), gain=st.booleans())
def test_at_the_start_every_route_is_the_mean_of_its_sources(count, rank, routes, gain):
    values = sources(count)
    mixed = dr.DepthRead(WIDTH, rank=rank, routes=routes, gain=gain).double()(values)
    for route in (mixed,) if routes == 1 else mixed:
        torch.testing.assert_close(route, sum(values) / count, rtol=0, atol=1e-14)


@pytest.mark.parametrize("gain", [False, True])
def test_a_read_is_the_equation(gain):
    values, prior = sources(4), [0.0, 0.5, -1.0, -torch.inf]
    read = moved(dr.DepthRead(WIDTH, rank=3, routes=2, gain=gain, eps=1e-5))
    keys = torch.stack(values)[..., -3:]
    normed = keys / (keys.square().mean(-1, keepdim=True) + 1e-5).sqrt() * (read.gain if gain else 1)
    z = torch.einsum("sbtr,qr->qsbt", normed, read.queries) + torch.tensor(prior).double()[:, None, None]
    expected = torch.einsum("qsbt,sbtd->qbtd", z.softmax(1), torch.stack(values))
    for found, wanted in zip(read(values, prior=prior), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_keys_of_their_own_take_the_place_of_the_values_last_coordinates():
    values, read = sources(3), moved(dr.DepthRead(WIDTH, rank=3))
    torch.testing.assert_close(read(values, [value[..., -3:] for value in values]), read(values), rtol=0, atol=0)
    other = read(values, sources(3, width=3, seed=9))
    assert not torch.allclose(other, read(values))


def test_two_routes_are_those_of_the_networks_own_read():
    values, read = sources(4), moved(dr.DepthRead(WIDTH, routes=2))
    inside = QkV(WIDTH, gain=False, eps=read.eps, impl=read.impl).double()
    with torch.no_grad():
        inside.get_parameter("query_qk").copy_(read.queries[0])
        inside.get_parameter("query_v").copy_(read.queries[1])
    for ours, theirs in zip(read(values), inside(None, values, None), strict=True):
        assert torch.equal(ours, theirs)


def test_reset_takes_queries_and_gain_back_to_the_start():
    read = moved(dr.DepthRead(WIDTH, gain=True))
    read.reset_parameters()
    assert not read.queries.any()
    assert bool((read.gain == 1).all())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 0}, "width: 0; a source has at least 1 coordinate"),
        ({"width": 8, "rank": 9}, "rank: 9 must lie between 1 and the width, 8"),
        ({"width": 8, "rank": 0}, "rank: 0 must lie between 1 and the width, 8"),
        ({"width": 8, "eps": float("nan")}, "eps: nan must be finite and not negative"),
        ({"width": 8, "eps": "x"}, "eps: x must be finite and not negative"),
        ({"width": 8, "routes": 0}, "routes: 0; there is nothing to read without a query, give at least 1"),
        ({"width": 8, "impl": "referense"}, "impl: 'referense' is not available in this version"),
    ],
    ids=str,
)
def test_a_read_that_cannot_be_is_refused_by_the_argument_that_is_wrong(as_a_user, arguments, message):
    with pytest.raises(dr.ArgumentError) as refused:
        dr.DepthRead(**arguments)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "values: there is no source to read"),
        ((sources(2, width=16),), "values[0]: width 16, but this read was made for 8"),
        ((torch.zeros(2, 3, 8),), "values: one tensor of shape [2, 3, 8]; give a sequence"),
        ((iter(sources(2)),), "values: a list_iterator; give a list or tuple of tensors, one a source"),
        (([*sources(1), 0.5],), "values[1]: a float; give a tensor"),
        (([0.5],), "values[0]: a float; give a tensor"),
        ((sources(2), iter(sources(2))), "keys: a list_iterator; give a list or tuple of tensors"),
        ((sources(2), sources(1)), "keys: 1 keys for 2 values"),
        ((sources(2), None, [0.0]), "prior: 1 numbers for 2 sources"),
    ],
    ids=["none", "width", "tensor", "iterator", "a number", "only a number", "keys iterator", "keys", "prior"],
)
def test_sources_that_do_not_fit_are_refused_by_the_argument_that_is_wrong(as_a_user, arguments, message):
    with pytest.raises(dr.DepthrouteError) as refused:
        dr.DepthRead(WIDTH).double()(*arguments)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


class Stack(nn.Module):
    """Reads in a plain model: every layer reads all earlier outputs, two routes into a gated sublayer."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = nn.ModuleList([dr.DepthRead(WIDTH, rank=4, routes=2, gain=True) for _ in range(3)])
        self.sublayers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.readout = dr.DepthRead(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = [x]
        for read, sublayer in zip(self.reads, self.sublayers, strict=True):
            gate, value = read(outputs)
            outputs.append(sublayer(value) * gate.sigmoid())
        return self.readout(outputs)


def test_a_model_with_reads_compiles_as_one_graph_and_learns_the_same(as_a_user):
    torch.manual_seed(0)
    model, x = Stack(), torch.randn(2, 3, WIDTH)
    with torch.no_grad():
        for read in (*model.reads, model.readout):
            read.queries.normal_()
    plain = model(x)
    plain.square().mean().backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    # Whether it is one graph is decided before the backend; inductor would add a minute of C++.
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
    compiled.square().mean().backward()
    torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-6)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-6, msg=name)


def test_importing_prints_nothing_configures_no_logging_and_costs_no_torch():
    code = """
import logging, sys
import depthroute as dr
assert "torch" not in sys.modules
assert set(dr.__all__) <= set(dir(dr))
for name in dr.__all__:
    getattr(dr, name)
assert dr.__version__.split(".")[0].isdigit()
assert not logging.getLogger().handlers and not logging.getLogger("depthroute").handlers
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "src/depthroute/py.typed").is_file()
