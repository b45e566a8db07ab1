"""Where the kernels cannot run: one line that says what to do, and no other implementation in their place."""

import sys

import pytest
import torch

from depthroute.errors import ArgumentError
from depthroute.ops import attend, merge

pytest.importorskip("triton", reason="Triton is not installed (extra kernels)")

from depthroute.ops import triton as implementation
from depthroute.ops import triton_operators as operators
from depthroute.ops.result import Attended

EPS = 1e-6


@pytest.mark.usefixtures("as_a_user")
def test_what_cannot_run_here_is_one_line_that_says_what_to_do(monkeypatch):
    queries, values = torch.zeros(1, 4), [torch.zeros(3, 4)]
    monkeypatch.setattr(operators, "INTERPRETED", False)
    with pytest.raises(ArgumentError, match=r"needs a GPU, and the sources are on cpu; use impl 'reference', or set"):
        attend(queries, None, values, eps=EPS, impl="triton")
    with pytest.raises(ArgumentError, match="needs a GPU"):
        merge(*[Attended(torch.zeros(1, 3, 4), torch.zeros(1, 3))] * 2, impl="triton")
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "depthroute.ops.triton_operators")
    monkeypatch.delitem(sys.modules, "depthroute.ops.triton_kernels")
    monkeypatch.delattr("depthroute.ops.triton_operators")
    monkeypatch.delattr("depthroute.ops.triton_kernels")
    with pytest.raises(ArgumentError, match=r"not installed; pip install 'depthroute\[kernels\]'"):
        attend(queries, None, values, eps=EPS, impl="triton")


@pytest.mark.usefixtures("as_a_user")
def test_a_width_above_the_widest_is_refused(monkeypatch):
    monkeypatch.setattr(operators, "INTERPRETED", True)
    values = [torch.zeros(1, 8193)] * 2
    with pytest.raises(ArgumentError, match="reads widths up to 8192, not 8193"):
        attend(torch.zeros(1, 4), None, values, eps=EPS, impl="triton")


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("keys", "norm_eps", "message"),
    [
        ([torch.zeros(2, 8)] * 2, 0.1, r"keys: shape \[2, 8\]; these queries and values need \[2, 4\]"),
        (None, -0.1, "norm_eps: -0.1 must be finite and not negative"),
    ],
)
def test_a_normed_read_checks_its_arguments_as_a_plain_one_does(keys, norm_eps, message):
    queries, values = torch.zeros(1, 4), [torch.zeros(2, 8)] * 2
    with pytest.raises(ArgumentError, match=message):
        implementation.attend_normed(queries, keys, values, None, eps=EPS, gain=None, norm_eps=norm_eps)


def test_the_operator_itself_reads_no_rows_that_it_cannot_find():
    values = [torch.zeros(3, 3), torch.zeros(3, 3).mT]
    with pytest.raises(ArgumentError, match="rows do not lie at equal distances"):
        operators.read(torch.zeros(1, 3), [], values, None, EPS, None)
