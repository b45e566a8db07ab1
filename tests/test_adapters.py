"""Other people's kernels as implementations: what they are asked, and what is refused before they are."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from depthroute.errors import ArgumentError
from depthroute.ops import attend, merge
from depthroute.ops.result import Attended

HOME = {"fast_attnres": "attnres", "fla": "fla.ops.attnres", "liger": "liger_kernel.transformers.functional"}
BF16 = {"dtype": torch.bfloat16}
GOOD = {"queries": torch.zeros(1, 8), "keys": None, "values": [torch.zeros(3, 8, **BF16)] * 2, "eps": 1e-6}

pytestmark = pytest.mark.usefixtures("as_a_user")


@pytest.fixture
def calls(monkeypatch):
    """Kernels that only note what they are given, in the places where the packages have theirs."""
    noted = []

    def note(name, result):
        def kernel(*arguments, **options):
            noted.append((name, arguments, options))
            return result(*arguments)

        return kernel

    peers = {
        "attnres": SimpleNamespace(
            reference_attnres=None,  # for a CPU
            attnres=note("attnres", lambda values, query: values[0]),
            attnres_multi=note("attnres_multi", lambda values, queries: torch.stack([values[0]] * len(queries))),
        ),
        "fla.ops.attnres": SimpleNamespace(fused_attnres=note("fused_attnres", lambda query, values, *_: values[0])),
        "liger_kernel.transformers.functional": SimpleNamespace(
            liger_attn_res=note("liger_attn_res", lambda stacked, *_: stacked[0])
        ),
    }
    for name, peer in peers.items():
        for number in range(1, name.count(".") + 1):
            monkeypatch.setitem(sys.modules, name.rsplit(".", number)[0], SimpleNamespace(__path__=[]))
        monkeypatch.setitem(sys.modules, name, peer)
    return noted


@pytest.mark.parametrize(
    ("impl", "change", "message"),
    [
        *((impl, {"keys": [torch.zeros(3, 8, **BF16)] * 2}, "keys of their own") for impl in HOME),
        *((impl, {"prior": [0.0, 1.0]}, "a prior") for impl in HOME),
        ("fast_attnres", {"values": [torch.zeros(3, 8)]}, "torch.float32 sources, only bf16"),
        ("fast_attnres", {"values": [torch.zeros(3, 8, **BF16)] * 130}, "130 sources, only up to 129"),
        ("fast_attnres", {"queries": torch.zeros(17, 8)}, "17 queries, only up to 16"),
        ("fast_attnres", {"values": [torch.zeros(1, 8193, **BF16)]}, "width 8193, only up to 8192"),
        ("fast_attnres", {"eps": 0.0}, "an eps of 0"),
        ("fla", {"queries": torch.zeros(1, 4)}, "keys that are a part of the value"),
        ("fla", {"values": [torch.zeros(3, 9, **BF16)], "queries": torch.zeros(1, 9)}, "rows that are not aligned"),
        ("fla", {"values": [torch.zeros(3, 8).double()]}, "torch.float64 sources"),
        ("fla", {}, "sources on cpu, only on a GPU"),
        ("liger", {"queries": torch.zeros(1, 4)}, "keys that are a part of the value"),
        ("liger", {"values": [torch.zeros(3, 8, **BF16)] * 33}, "33 sources, only up to 32"),
        ("liger", {}, "sources on cpu, only on a GPU"),
    ],
)
def test_what_a_kernel_does_not_cover_is_refused_by_name_and_never_asked(impl, change, message, calls):
    with pytest.raises(ArgumentError, match=f"impl '{impl}' does not cover {message}.*; use another") as raised:
        attend(**(GOOD | change), impl=impl)
    assert "\n" not in str(raised.value)
    assert calls == []


def test_without_their_reference_the_kernels_of_fast_attnres_are_not_asked_on_a_cpu(calls):
    del sys.modules["attnres"].reference_attnres
    with pytest.raises(ArgumentError, match="impl 'fast_attnres' does not cover sources on cpu, only on a GPU"):
        attend(**GOOD, impl="fast_attnres")
    assert calls == []


def test_fla_is_not_given_rows_that_begin_off_16_bytes(calls):
    odd = torch.zeros(3 * 8 + 1, **BF16)[1:].view(3, 8)
    with pytest.raises(ArgumentError, match="impl 'fla' does not cover rows that are not aligned to 16 bytes"):
        attend(**(GOOD | {"values": [GOOD["values"][0], odd]}), impl="fla")


def test_liger_adds_gradients_by_atomics_and_is_refused_where_runs_must_repeat(calls):
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(ArgumentError, match="impl 'liger' does not cover deterministic gradients"):
            attend(**GOOD, impl="liger")
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_gain_is_folded_into_the_query_and_many_queries_are_one_call(calls):
    values, gain = [torch.ones(3, 8, **BF16)] * 2, torch.full((8,), 2.0)
    for queries, name in ((torch.ones(1, 4), "attnres"), (torch.ones(3, 4), "attnres_multi")):
        mixed, lse = attend(queries, None, values, eps=1e-5, gain=gain[:4], impl="fast_attnres")
        called, (sources, asked), options = calls.pop()
        assert (called, options, calls) == (name, {"eps": 1e-5}, [])
        assert all(one is other for one, other in zip(sources, values, strict=True))
        assert torch.equal(asked, torch.full_like(asked, 2.0))
        assert mixed.shape == (len(queries), 3, 8)
        assert lse.isnan().all()


@pytest.mark.parametrize("impl", HOME)
def test_a_read_without_lse_is_not_merged(impl, calls):
    read = Attended(torch.zeros(1, 3, 8), torch.zeros(1, 3))
    with pytest.raises(ArgumentError, match=f"impl '{impl}' gives no lse to merge by"):
        merge(read, read, impl=impl)


@pytest.mark.parametrize("impl", HOME)
def test_a_package_that_is_not_there_is_one_line_that_says_how_to_get_it(impl, monkeypatch):
    monkeypatch.setitem(sys.modules, HOME[impl], None)
    with pytest.raises(
        ArgumentError, match=rf"impl '{impl}': {HOME[impl]} cannot be imported .*; pip install"
    ) as raised:
        attend(**GOOD, impl=impl)
    assert "\n" not in str(raised.value)


def test_fast_attnres_computes_what_the_specification_does():
    peer = pytest.importorskip("attnres", reason="fast-attnres is not installed")
    if hasattr(peer, "attnres_multi") and not torch.cuda.is_available():
        pytest.skip("this version of fast-attnres needs a GPU")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    queries = torch.randn(1, 4, device=device).bfloat16().float()
    values = [torch.randn(5, 8, device=device).bfloat16().requires_grad_() for _ in range(3)]
    found = []
    for impl in ("fast_attnres", "reference"):
        mixed = attend(queries, None, values, eps=1e-6, impl=impl).mixed
        found.append([mixed, *torch.autograd.grad(mixed.float().sin().sum(), values)])
    assert_close(found[0], found[1], rtol=2**-7, atol=2**-7)


@pytest.mark.gpu
@pytest.mark.parametrize("impl", ["fla", "liger"])
def test_kernels_that_need_a_gpu_compute_what_the_specification_does(impl):
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    pytest.importorskip(HOME[impl], reason=f"the package of {impl} is not installed")
    queries, gain = torch.randn(2, 64, device="cuda"), torch.rand(64, device="cuda") + 0.5
    values = [torch.randn(2, 5, 64, device="cuda").bfloat16().requires_grad_() for _ in range(3)]
    found = []
    for name in (impl, "reference"):
        mixed = attend(queries, None, values, eps=1e-6, gain=gain, impl=name).mixed
        found.append([mixed, *torch.autograd.grad(mixed.float().sin().sum(), values)])
    assert_close(found[0], found[1], rtol=2**-6, atol=2**-6)
