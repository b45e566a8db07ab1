"""Attention residuals for PyTorch: how a layer reads from earlier depth, as one equation.

    import depthroute as dr
    read = dr.DepthRead(width)                                # a module with a learned query
    mixed, lse = dr.attend(queries, keys, values, eps=1e-6)   # the function beneath it
    model, tokenizer = dr.load("runs/mine")                   # what a training left

Names are loaded when first used, so that the command line answers without importing torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from depthroute.errors import ArgumentError, ConfigError, DataError, DepthrouteError, RunError

if TYPE_CHECKING:
    from depthroute.depth_read import DepthRead
    from depthroute.model.generate import Sampling, generate
    from depthroute.model.transformer import ModelConfig, Transformer
    from depthroute.ops import Attended, attend, merge
    from depthroute.presets import expand_model
    from depthroute.residuals import Residual
    from depthroute.train.trained import load

__all__ = [
    "ArgumentError",
    "Attended",
    "ConfigError",
    "DataError",
    "DepthRead",
    "DepthrouteError",
    "ModelConfig",
    "Residual",
    "RunError",
    "Sampling",
    "Transformer",
    "attend",
    "expand_model",
    "generate",
    "load",
    "merge",
]

HOME = {
    "Attended": "depthroute.ops",
    "attend": "depthroute.ops",
    "merge": "depthroute.ops",
    "DepthRead": "depthroute.depth_read",
    "Residual": "depthroute.residuals",
    "ModelConfig": "depthroute.model.transformer",
    "Transformer": "depthroute.model.transformer",
    "expand_model": "depthroute.presets",
    "Sampling": "depthroute.model.generate",
    "generate": "depthroute.model.generate",
    "load": "depthroute.train.trained",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("depthroute")
    if name not in HOME:
        raise AttributeError(f"module 'depthroute' has no attribute '{name}'")
    return getattr(importlib.import_module(HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
