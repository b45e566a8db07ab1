"""Training: one configuration, one run directory."""
