"""Timings as ratios, of things measured side by side in one run. benchmarks/README.md has the results."""
