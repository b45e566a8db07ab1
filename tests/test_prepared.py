"""Prepared writes, and tensors that are compared with what they held: what is refused, and what is rounded."""

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from depthroute import ops
from depthroute.errors import ArgumentError


@pytest.mark.parametrize("away", [torch.empty(3, device="meta"), TwoTensor(torch.ones(3), torch.ones(3))], ids=type)
def test_what_lies_in_no_memory_is_not_compared(away):
    here = torch.ones(3)
    assert ops.remembered([here], impl="native")()
    assert not ops.remembered([here, away], impl="native")()


@pytest.mark.parametrize("impl", ["reference", "native"])
def test_an_output_is_rounded_before_it_is_added(impl):
    value, output = torch.full((1, 4), 256.0, dtype=torch.bfloat16), torch.full((1, 4), 1.0 + 2**-9)
    expected = value + output.bfloat16()
    ops.prepared_write(value, None, opens=False, eps=1e-6, impl=impl)(output, None)
    assert torch.equal(value, expected)


def test_what_has_no_memory_is_not_read_and_not_written():
    double = TwoTensor(torch.ones(2, 4), torch.ones(2, 4))
    with pytest.raises(ArgumentError, match="a TwoTensor has none; choose another"):
        ops.prepared_write(torch.zeros(2, 4), None, opens=True, eps=1e-6, impl="native")(double, None)
    with pytest.raises(ArgumentError, match="a TwoTensor has none; choose another"):
        ops.attend(torch.ones(1, 4), None, [double], eps=1e-6, impl="native")


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("impl", ["reference", "native"])
def test_a_source_that_cannot_be_written_to_is_an_error(impl):
    def prepare(value, key=None):
        return ops.prepared_write(value, key, opens=True, eps=1e-6, impl=impl)

    for value in (torch.zeros(4, 6).T, torch.zeros(4, 8)[:, :4], torch.zeros(1, 4).expand(3, 4)):
        with pytest.raises(ArgumentError, match=r"value: must be contiguous"):
            prepare(value)
    for key in (torch.zeros(3, 2), torch.zeros(2, 2, dtype=torch.float64)):
        with pytest.raises(ArgumentError, match="key: does not lie beside the value"):
            prepare(torch.zeros(2, 4), key)
    with pytest.raises(ArgumentError, match=r"output: \[1, 4\] on cpu does not fit"):
        prepare(torch.zeros(2, 4))(torch.ones(1, 4), None)
    with pytest.raises(ArgumentError, match="key: the source has one"):
        prepare(torch.zeros(2, 4), torch.zeros(2, 2))(torch.ones(2, 4), None)


def test_native_says_where_and_what_it_can_write():
    with pytest.raises(ArgumentError, match="'native' reads on a CPU, and the values are on meta"):
        ops.prepared_write(torch.zeros(2, 4, device="meta"), None, opens=True, eps=1e-6, impl="native")
