"""The depth read as two functions on tensors.

    attend   z_i = <q, g * RMSNorm(k_i)> + prior_i,  a = softmax_i(z),  mixed = sum_i a_i v_i,  lse = log sum_i exp z_i
    merge    joins two reads of disjoint sources into the read of their union

`reference.py` is the specification, in plain torch; every other implementation is a file beside it with the same two
functions, checked against it:

    compiled   torch.compile, a few sources at a time, for any device
    native     C++, one pass over the sources of a token, for a CPU
    triton     kernels for a GPU

and adapters to others' kernels, which refuse by name what those do not cover: fast_attnres, fla, liger.

Only this package names implementations.
"""

import importlib.util
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from depthroute.errors import ArgumentError
from depthroute.ops import compiled, fast_attnres, fla, liger, native, native_in_place, reference, triton
from depthroute.ops.building import compiler
from depthroute.ops.checks import check_attend, check_merge, check_output, check_source
from depthroute.ops.reference import emitted
from depthroute.ops.result import Attended
from depthroute.schema import nearest

__all__ = [
    "IMPLEMENTATIONS",
    "SPECIFICATION",
    "Attended",
    "attend",
    "available",
    "calls",
    "emitted",
    "logits",
    "merge",
    "prepared_read",
    "prepared_write",
    "remembered",
    "resolve",
]

IMPLEMENTATIONS = {
    "reference": reference,
    "compiled": compiled,
    "native": native,
    "triton": triton,
    "fast_attnres": fast_attnres,
    "fla": fla,
    "liger": liger,
}
SPECIFICATION = "reference"

calls: Counter[str] = Counter()
"""How often each implementation has read, counted where it is not being traced."""


def resolve(impl: str, device: torch.device | None = None) -> str:
    """The implementation that `impl` stands for on a device (the default device unless given).

    `auto` is `native` on a CPU, the fastest in benchmarks/README.md, or `reference` where there is no C++ compiler. On
    a GPU, where nothing was measured yet, it is `compiled`. ArgumentError if there is none of this name.
    """
    if impl == "auto":
        kind = (device or torch.get_default_device()).type
        # A model that is built without memory gets it where there is a GPU on that.
        on_gpu = kind != "cpu" and (kind != "meta" or torch.cuda.is_available())
        return "compiled" if on_gpu else "native" if compiler() else "reference"
    if impl not in IMPLEMENTATIONS:
        choices = ("auto", *IMPLEMENTATIONS)
        raise ArgumentError(f"impl: '{impl}' is not available in this version {nearest(impl, choices)}")
    return impl


def available() -> list[str]:
    """Implementations that run on this machine's default device."""
    if torch.get_default_device().type == "cpu":
        return ["reference", "compiled", *(["native"] if compiler() else [])]
    return ["reference", "compiled", *(["triton"] if importlib.util.find_spec("triton") else [])]


def attend(
    queries: Float[Tensor, "query rank"],
    keys: Sequence[Float[Tensor, "*token rank"]] | None,
    values: Sequence[Float[Tensor, "*token width"]],
    prior: Sequence[float] | Float[Tensor, " source"] | None = None,
    before: Attended | None = None,
    *,
    eps: float,
    gain: Float[Tensor, " rank"] | None = None,
    impl: str = "auto",
) -> Attended:
    """Read from depth: every query mixes the values of all sources, at each token on its own.

        z_i = <q, g * RMSNorm(k_i)> + prior_i,   a = softmax_i(z),   mixed = sum_i a_i v_i

    Attention Residuals (arXiv 2603.15031); there is no 1/sqrt(rank) scale and the values are not normalised.

    Args:
        queries: one row a query.
        keys: one tensor a source, or None: the last `rank` coordinates of each value (the whole value if rank = width).
        values: one tensor a source, all of one shape, dtype and device.
        prior: one number a source, added to its logit (in nats); None adds nothing, -inf hides the source. The numbers
            of a tensor are not looked at, which would wait for the device: if it hides every source, the mixture is NaN
            (with `before`: NaN or that of `before`).
        before: what the same queries read of other sources: the result is the read of all of them.
        eps: added to the mean square of a key before the root.
        gain: learned gain of the key norm, shared by the queries.
        impl: which implementation computes it.

    Returns:
        mixed, `query *token width`, in the values' dtype; lse, `query *token`, in fp32 (fp64 for fp64 input).

    Raises:
        ArgumentError: no source, or every one hidden; shapes, dtypes or devices that do not fit; rank above width; eps
            not finite. Queries, gain and prior may be fp32 whatever the values are, but fp64 only where the values are.
    """
    check_attend(queries, keys, values, prior, before, eps, gain)
    chosen = counted(resolve(impl, values[0].device))
    return IMPLEMENTATIONS[chosen].attend(queries, keys, values, prior, before, eps=eps, gain=gain)


def prepared_read(
    queries: Callable[[], Float[Tensor, "query rank"]],
    keys: Sequence[Float[Tensor, "*token rank"]] | None,
    values: Sequence[Float[Tensor, "*token width"]],
    prior: Sequence[float] | None = None,
    *,
    eps: float,
    gain: Float[Tensor, " rank"] | None = None,
    impl: str = "auto",
) -> Callable[[], Float[Tensor, "query *token width"]]:
    """The mixtures of these very keys and values, to be read again whenever what they hold has changed.

    Arguments, and errors, as `attend`, once for all reads. For inference: there are no gradients. `native` asks for the
    queries once: prepare again when they, or the gain, have changed; see `remembered`.
    """
    check_attend(queries(), keys, values, prior, None, eps, gain)
    chosen = resolve(impl, values[0].device)
    if chosen == "native":
        read = native_in_place.PreparedRead(queries(), keys, values, prior, eps=eps, gain=gain)
    else:
        attend = IMPLEMENTATIONS[chosen].attend

        @torch.no_grad()
        def read() -> Tensor:
            return attend(queries(), keys, values, prior, None, eps=eps, gain=gain).mixed

    def take() -> Tensor:
        calls[chosen] += 1
        return read()

    return take


def prepared_write(
    value: Float[Tensor, "*token width"],
    key: Float[Tensor, "*token rank"] | None,
    *,
    opens: bool,
    eps: float,
    impl: str = "auto",
) -> Callable[[Float[Tensor, "*token width"], Float[Tensor, "*token rank"] | None], None]:
    """Of this very source: it becomes, or without `opens` grows by, an output (y, u).

        v = y,   k = RMSNorm(u)        or        v += y,   k += RMSNorm(u)

    For inference: there are no gradients. The sum of squares of u is `native`'s own: it agrees to rounding.

    Raises:
        ArgumentError: tensors of the source that are not contiguous or do not go together; later, outputs of another
            shape or device.
    """
    check_source(value, key)
    if resolve(impl, value.device) == "native":
        return native_in_place.PreparedWrite(value, key, opens, eps)
    put = Tensor.copy_ if opens else Tensor.add_

    def write(output: Tensor, rows: Tensor | None) -> None:
        check_output(output, value)
        put(value, output.to(value.dtype))
        if key is not None:
            rows = check_output(rows, key)
            put(key, emitted(rows.to(key.dtype), eps))

    return write


def remembered(tensors: Sequence[Tensor], *, impl: str = "auto") -> Callable[[], bool]:
    """Whether reads that were prepared from these tensors are still theirs, byte for byte, whoever writes to them.

    Only `native` keeps what could become old. What is not contiguous, or not in the processor's memory (as parameters
    that were moved away for a while), it does not compare: the answer is then no.
    """
    if resolve(impl) != "native":
        return lambda: True
    if not all(one.is_cpu and one.is_contiguous() and one.data_ptr() for one in tensors):
        return lambda: False
    return native_in_place.Remembered(tensors)


def logits(
    queries: Float[Tensor, "query rank"],
    keys: Sequence[Float[Tensor, "*token rank"]],
    prior: Sequence[float] | Float[Tensor, " source"] | None = None,
    *,
    eps: float,
) -> Float[Tensor, "query source *token"]:
    """The logits z of a read, for those who look at depth or change it: softmax over `source` gives the weights.

        z_i = <q, RMSNorm(k_i)> + prior_i        in fp32 (fp64 for fp64 keys); a gain belongs into q

    Only the specification computes it. Every query is scored on its own, so equal queries give equal bits.

    Raises:
        ArgumentError: as `attend`.
    """
    check_attend(queries, None, keys, prior, None, eps, None)
    return reference.logits(queries, keys, prior, eps=eps)


def merge(first: Attended, second: Attended, *, impl: str = "auto") -> Attended:
    """The read of the union of two disjoint sets of sources, from the reads of each.

        p = sigmoid(lse_2 - lse_1),   mixed = mixed_1 + p (mixed_2 - mixed_1),   lse = log(exp lse_1 + exp lse_2)

    Exact, gradients through lse included. Attention Residuals (arXiv 2603.15031), two-phase schedule.

    Raises:
        ArgumentError: reads of different queries, tokens, widths, dtypes or devices; an lse below fp32.
    """
    check_merge(first, second)
    return IMPLEMENTATIONS[counted(resolve(impl, first.mixed.device))].merge(first, second)


def counted(impl: str) -> str:
    if not torch.compiler.is_compiling():
        calls[impl] += 1
    return impl
