"""Small networks behind Hugging Face's interface."""

import networks
import torch

from depthroute.interop.huggingface import DepthRouteForCausalLM

SUBSET = networks.attnres({"blocks": 4}, {"subset": {"rank": 3, "seed": 5}}, "qk_v", gain=True)
SYSTEMS = {
    "additive": networks.ADDITIVE,
    "subset, tied": SUBSET,
    "projected": networks.attnres("full", {"projected": 3}, "q_k_v"),
}
NEW = 6


def wrapped(residual=SUBSET, **changes):
    """A model in fp64 behind the interface."""
    return DepthRouteForCausalLM.of(networks.moved(residual, **changes)).eval()


def generated(model, tokens, mask=None, **options):
    """The new tokens."""
    found = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens) if mask is None else mask,
        max_new_tokens=NEW,
        pad_token_id=0,
        **({"do_sample": False} | options),
    )
    return found[:, tokens.shape[1] :]
