"""What things cost, measured: ratios of interleaved timings, with intervals."""
