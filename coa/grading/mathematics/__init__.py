"""Answers to problems of mathematics: what they state, and whether two of them are the same."""
