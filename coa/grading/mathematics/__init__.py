"""Reads and compares answers to mathematics problems."""
