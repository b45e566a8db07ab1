"""The decoder-only Transformer around a residual."""
