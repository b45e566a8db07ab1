"""The read in native.cpp of the same tensors again and again, and writes to them: for `residuals/attnres/in_place.py`.

Whatever can be found out once is: to find out for one token what lies where takes many times as long as its read.
"""

import ctypes
from array import array
from collections.abc import Sequence
from typing import final

from jaxtyping import Float
from torch import Tensor

from depthroute.errors import ArgumentError
from depthroute.ops.building import library
from depthroute.ops.checks import check_output
from depthroute.ops.native import address, check_readable, described, kernel, like_outputs, place, rows, scoring, stride

# Where the mixtures' address is among the numbers of a forward read, which end with mixed, lse, logits and scales.
MIXED = -4

# For how many reads memory is asked for at once, and divided.
AHEAD = 4

# Of a write, where the stride and the address of the value are, each before that of the key rows.
OUTPUT_STRIDE, OUTPUT = 4, 8


@final
class PreparedRead:
    """The mixtures of `attend`, of the same tensors again and again: what they hold may change, not where they lie."""

    __slots__ = ("address", "alive", "eps", "fresh", "kernel", "mixed", "numbers")  # one object, near together

    def __init__(
        self,
        queries: Float[Tensor, "query rank"],
        keys: Sequence[Float[Tensor, "*token rank"]] | None,
        values: Sequence[Float[Tensor, "*token width"]],
        prior: Sequence[float] | None,
        *,
        eps: float,
        gain: Float[Tensor, " rank"] | None,
    ) -> None:
        sources = [*(keys or ()), *values]
        if not all(source.is_contiguous() for source in sources):
            raise ArgumentError("a prepared read needs sources that are contiguous; call .contiguous() on them first")
        query, priors = scoring(queries, gain, prior, values[0])
        inputs, out = (query, priors, None, None), like_outputs(len(values), query, sources)
        self.eps, self.mixed = eps, out[0]
        self.fresh: list[Tensor] = []
        self.kernel, self.numbers = kernel("attend", values[0].dtype), described(len(values), inputs, sources, *out)
        self.address, _ = self.numbers.buffer_info()
        self.alive = (inputs, sources, out)  # as long as their addresses are in use

    def __call__(self) -> Float[Tensor, "query *token width"]:
        if not self.fresh:
            self.fresh.extend(self.mixed.new_empty((AHEAD, *self.mixed.shape)).unbind(0))
        mixed = self.fresh.pop()
        self.numbers[MIXED] = mixed.data_ptr()
        self.kernel(self.address, self.eps)
        return mixed


@final
class PreparedWrite:
    """Outputs written to the same source again and again, or added to it: see `ops.prepared_write`."""

    __slots__ = ("address", "eps", "kernel", "key", "numbers", "several", "value")

    def __init__(
        self, value: Float[Tensor, "*token width"], key: Float[Tensor, "*token rank"] | None, opens: bool, eps: float
    ) -> None:
        check_readable(value)
        self.value, self.key, self.eps, self.kernel = value, key, eps, kernel("write", value.dtype)
        width, rank = value.shape[-1], 0 if key is None else key.shape[-1]
        strides_and_places = [width, rank, value.data_ptr(), address(key), 0, 0]
        self.numbers = array("q", [value.numel() // width, width, rank, opens, *strides_and_places])
        self.address, _ = self.numbers.buffer_info()
        self.several = value.numel() > width

    def __call__(self, value: Float[Tensor, "*token width"], rows: Float[Tensor, "*token rank"] | None) -> None:
        numbers = self.numbers
        value = fitting(value, self.value)
        numbers[OUTPUT] = value.data_ptr() or place(value)
        if self.key is not None:
            rows = fitting(rows, self.key)
            numbers[OUTPUT + 1] = rows.data_ptr() or place(rows)
        if self.several:  # one row lies as far from the next as it likes
            numbers[OUTPUT_STRIDE] = stride(value)
            numbers[OUTPUT_STRIDE + 1] = 0 if rows is None else stride(rows)
        self.kernel(self.address, self.eps)


@final
class Remembered:
    """Whether contiguous tensors hold what they held: byte for byte, so that whoever has changed them is noticed."""

    __slots__ = ("address", "alive", "kernel", "numbers")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        copies = [tensor.detach().clone() for tensor in tensors]
        pairs = zip(tensors, copies, strict=True)
        pieces = [(tensor.numel() * tensor.itemsize, tensor.data_ptr(), copy.data_ptr()) for tensor, copy in pairs]
        self.numbers = array("q", [len(pieces), *(number for piece in pieces for number in piece)])
        self.address, _ = self.numbers.buffer_info()
        self.kernel = library().unchanged
        self.kernel.argtypes, self.kernel.restype = (ctypes.c_void_p,), ctypes.c_int64
        self.alive = (copies, [tensor.data for tensor in tensors])  # as long as their addresses are in use

    def __call__(self) -> bool:
        return bool(self.kernel(self.address))


def fitting(output: Tensor | None, source: Tensor) -> Tensor:
    """The output as rows that can be written to the source."""
    if output is None or output.shape != source.shape or not output.is_cpu:
        output = check_output(output, source)
    if output.dtype != source.dtype:
        output = output.to(source.dtype)
    return output if output.is_contiguous() else rows(output)
