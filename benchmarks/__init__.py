"""Benchmarks: `python -m benchmarks.NAME` times both sides in turns in one run and writes `results/NAME.json`."""
