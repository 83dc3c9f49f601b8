"""Commands that list the available settings and benchmarks."""
