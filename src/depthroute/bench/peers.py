"""Other projects' reads, where they are installed: one query, values as keys, no prior. None is a dependency.

Each is a function of (query, sources, eps), looked up at run time; one that is not there is listed as absent.
"""

import importlib
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor
from torch.func import functional_call

Peer = Callable[[Tensor, Sequence[Tensor], float], Tensor]


def einsum(queries: Tensor, sources: Sequence[Tensor], eps: float) -> Tensor:
    """The read as the papers' listings have it, of stacked sources; any number of queries."""
    values = torch.stack(list(sources))
    keys = torch.nn.functional.rms_norm(values, values.shape[-1:], eps=eps)
    weights = torch.einsum("qd,std->sqt", queries, keys).softmax(0)
    return torch.einsum("sqt,std->qtd", weights, values)


def fast_attnres() -> Peer:
    attnres = importlib.import_module("attnres").attnres
    return lambda query, sources, eps: attnres(list(sources), query, eps=eps)


def flash_linear_attention() -> Peer:
    naive = importlib.import_module("fla.ops.attnres.naive").naive_attnres
    return lambda query, sources, eps: naive(query, list(sources), torch.ones_like(query), rms_eps=eps)


def attn_res() -> Peer:
    operator = importlib.import_module("attn_res").AttnResOperator

    def read(query: Tensor, sources: Sequence[Tensor], eps: float) -> Tensor:
        stacked = torch.stack(list(sources)).unsqueeze(1)  # it asks for [source, batch, token, width]
        return functional_call(operator(query.shape[-1], eps), {"pseudo_query": query}, stacked).squeeze(0)

    return read


LOADERS: dict[str, Callable[[], Peer]] = {
    "fast-attnres": fast_attnres,
    "flash-linear-attention": flash_linear_attention,
    "attn-res": attn_res,
}


def installed() -> tuple[dict[str, Peer], dict[str, str]]:
    """The peers that can be called, and why the others cannot."""
    found: dict[str, Peer] = {}
    absent: dict[str, str] = {}
    for name, load in LOADERS.items():
        try:
            installed_version = version(name)
            found[f"{name} {installed_version}"] = load()
        except PackageNotFoundError:
            absent[name] = "not installed"
        except (ImportError, AttributeError) as error:
            absent[name] = f"cannot be loaded: {error}"
    return found, absent
