"""Initial weights that equal seeds share.

Every matrix is drawn from a generator of its own, keyed by (seed, parameter name), on the CPU: a weight depends neither
on which other parameters the model has nor on the device. An output projection with key rows draws them under a name of
their own, so that its value rows are those of the model without keys.
"""

import hashlib

import torch
from torch import Tensor, nn


def initialise(model: nn.Module, seed: int, value_rows: int, stds: dict[str, float], std: float) -> None:
    """Draw every matrix of `model` from N(0, std^2) and set every norm gain to one.

    Args:
        value_rows: rows of an output projection that are its value; the rest are key rows.
        stds: standard deviations of the parameters named; all others have `std`.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            parameter = f"{name}.weight"
            rows = value_rows if name.endswith(("o_proj", "down_proj")) else module.weight.shape[0]
            draw(module.weight[:rows], seed, parameter, stds.get(parameter, std))
            draw(module.weight[rows:], seed, f"{parameter} key rows", stds.get(parameter, std))
        elif isinstance(module, nn.RMSNorm):
            module.reset_parameters()


@torch.no_grad()
def draw(rows: Tensor, seed: int, name: str, std: float) -> None:
    key = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "little") >> 1)
    rows.copy_(torch.randn(rows.shape, generator=generator, device="cpu", dtype=torch.float32) * std)
