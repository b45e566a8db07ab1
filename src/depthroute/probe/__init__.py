"""What a trained model's depth reads do: measured as they are, and changed to see what they are for.

    from depthroute.probe import trace
    traced = trace(model, tokens)                    # batch x token; any model, in a notebook too
    reads = traced.table("reads")

docs/probes.md defines every number.
"""

from depthroute.probe.trace import Traced, Tracer, trace

__all__ = ["Traced", "Tracer", "trace"]
