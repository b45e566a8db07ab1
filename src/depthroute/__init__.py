"""Attention residuals for PyTorch: how a layer reads from earlier depth, as one equation.

    import depthroute as dr
    mixed, lse = dr.attend(queries, keys, values, eps=1e-6)

Names are loaded when first used, so that the command line answers without importing torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from depthroute.model.transformer import ModelConfig, Transformer
    from depthroute.ops import Attended, attend, merge
    from depthroute.residuals import Residual

__all__ = ["Attended", "ModelConfig", "Residual", "Transformer", "attend", "merge"]

HOME = {
    "Attended": "depthroute.ops",
    "attend": "depthroute.ops",
    "merge": "depthroute.ops",
    "Residual": "depthroute.residuals",
    "ModelConfig": "depthroute.model.transformer",
    "Transformer": "depthroute.model.transformer",
}


def __getattr__(name: str) -> Any:
    if name not in HOME:
        raise AttributeError(f"module 'depthroute' has no attribute '{name}'")
    return getattr(importlib.import_module(HOME[name]), name)
