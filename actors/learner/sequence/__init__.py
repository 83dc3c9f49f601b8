"""Sequence parallelism: rows that several learner ranks share."""
