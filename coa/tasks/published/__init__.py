"""Published benchmarks of others: a table of them, and readers that make tasks of their rows."""
