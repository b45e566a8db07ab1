"""The learning rate over a run, as a factor of its peak."""

import math

from depthroute.config import ScheduleConfig


def factor(config: ScheduleConfig, step: int, steps: int) -> float:
    """The factor of step `step` (from 1) of `steps`. Warm-up ends at 1 on step `warmup`; the last step has `final`."""
    if step <= config.warmup:
        return step / config.warmup
    decaying = config.decay * steps if config.kind == "wsd" else steps - config.warmup
    left = steps - step
    if left >= decaying:
        return 1.0
    progress = 1 - left / decaying
    shape = progress if config.kind == "wsd" else (1 - math.cos(math.pi * progress)) / 2
    return 1 - (1 - config.final) * shape
