"""Reads programs of agents that act by code: which tools one called, with what, and what each of them returned."""
