"""Random arguments of depth reads, and all that comes of a read."""

import torch

from depthroute.ops import Attended

EPS = 1e-6
HALVES = [torch.bfloat16, torch.float16]


def leaves(*shapes: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
    return [tensor.requires_grad_() for tensor in drawn]


def results(read: Attended, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The read and the gradient of every input, of a loss that knows all of it."""
    wave = torch.arange(read.mixed.numel(), dtype=read.mixed.dtype).view_as(read.mixed).sin()
    loss = (read.mixed * wave).sum() + read.lse.square().sum()
    return [read.mixed, read.lse, *torch.autograd.grad(loss, inputs)]
