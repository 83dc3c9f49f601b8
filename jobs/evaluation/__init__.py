"""Evaluations: attempts at tasks, their journal, and comparisons of two of them."""
