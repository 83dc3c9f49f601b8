"""Reads programs of agents that act by code: the tools called, their arguments and their results."""
