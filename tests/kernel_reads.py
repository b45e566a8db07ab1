"""Reads by the kernels, compared with the specification in fp64."""

import torch
from torch.testing import assert_close

from depthroute.ops import attend
from depthroute.ops import triton_operators as operators

EPS = 1e-6
# Of the largest number in what is compared: one rounding, or those of some fp32 additions. The interpreter rounds to
# bf16 towards zero, a GPU to the nearest.
BF16 = 2.0**-7 if operators.INTERPRETED else 2.0**-8
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: BF16, torch.float16: 2.0**-11}


class Case:
    """Leaves of a read; the loss looks at the mixture and at lse."""

    def __init__(self, device, dtype, *, width=12, rank=12, queries=2, sources=3, token=(3,), own=False, **options):
        self.own, self.prior, self.gain = own, options.get("prior", False), options.get("gain", False)
        self.sources = sources
        full = torch.float64 if dtype == torch.float64 else torch.float32

        def normal(*shape, dtype=full):
            return torch.randn(shape, device=device).to(dtype)

        # Backward knows the mixture as it was rounded, and gradients can be no more exact than that.
        self.tolerance = TOLERANCE[dtype] * (4 if dtype in (torch.bfloat16, torch.float16) else 1)
        self.leaves = [
            normal(queries, rank) / rank**0.5,
            normal(rank) + 1,
            normal(sources),
            *(normal(*token, width, dtype=dtype) for _ in range(sources)),
            *(normal(*token, rank, dtype=dtype) for _ in range(sources if own else 0)),
        ]
        self.mixed_grad, self.lse_grad = normal(queries, *token, width, dtype=dtype), normal(queries, *token)

    def run(self, impl, exact=False, read=attend):
        """mixed, lse and every gradient."""
        made = [leaf.detach().to(torch.float64 if exact else leaf.dtype).requires_grad_() for leaf in self.leaves]
        queries, gain, prior, *sources = made
        values, keys = sources[: self.sources], sources[self.sources :] or None
        mixed, lse = read(
            queries,
            keys,
            values,
            prior if self.prior else None,
            eps=EPS,
            gain=gain if self.gain else None,
            impl=impl,
        )
        there = (True, self.gain, self.prior, *[True] * len(sources))
        used = [leaf for leaf, is_used in zip(made, there, strict=True) if is_used]
        back = (self.mixed_grad.to(mixed.dtype), self.lse_grad.to(lse.dtype))
        return [mixed, lse, *torch.autograd.grad((mixed, lse), used, back)]

    def check(self, read=attend):
        ours, exact = self.run("triton", read=read), self.run("reference", exact=True, read=read)
        for number, (mine, theirs) in enumerate(zip(ours, exact, strict=True)):
            close(mine, theirs, TOLERANCE[mine.dtype] if number < 2 else self.tolerance)


def close(ours, exact, tolerance):
    assert not ours.isnan().any()
    assert_close(ours.double(), exact, rtol=0, atol=tolerance * float(exact.detach().abs().max()))
