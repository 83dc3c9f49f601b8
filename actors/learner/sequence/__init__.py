"""Rows that several ranks of the learner hold together."""
