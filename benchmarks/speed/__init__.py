"""What the benchmarks of the loop share: their recipe and its tool, cores, runs in one session, and rates."""
