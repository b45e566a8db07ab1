"""Who listens to a module."""

from typing import Any

from torch import nn
from torch.nn.modules.module import (
    _has_any_global_hook,  # pyright: ignore[reportPrivateUsage]
)


def hooked_everywhere() -> bool:
    """Whether all modules have hooks."""
    return bool(_has_any_global_hook())  # pyright: ignore[reportUnknownArgumentType]


def watched(module: nn.Module) -> bool:
    """Whether calling the module may be more than its class's forward.

    It, or every module, has hooks; it holds modules, such as parametrisations; or its forward is its own.
    """
    own: dict[str, Any] = vars(module)
    more = own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_modules"] or "forward" in own
    return bool(more) or hooked_everywhere()
