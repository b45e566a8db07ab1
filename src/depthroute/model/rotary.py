"""Rotary position embedding in Llama's half-split layout: coordinate i turns with coordinate i + width/2.

Su et al., *RoFormer*, arXiv 2104.09864.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def angles(
    positions: Int[Tensor, "... token"], head_width: int, theta: float, dtype: torch.dtype
) -> tuple[Float[Tensor, "... token half"], Float[Tensor, "... token half"]]:
    """Cosines and sines of position * theta^(-2i / head_width), in fp32 (fp64 where `dtype` is fp64)."""
    inside = torch.float64 if dtype == torch.float64 else torch.float32
    half = torch.arange(0, head_width, 2, dtype=inside, device=positions.device)
    angle = positions.to(inside).unsqueeze(-1) * theta ** (-half / head_width)
    return angle.cos(), angle.sin()


def rotate(
    x: Float[Tensor, "batch head token width"],
    cos: Float[Tensor, "... token half"],
    sin: Float[Tensor, "... token half"],
) -> Float[Tensor, "batch head token width"]:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
