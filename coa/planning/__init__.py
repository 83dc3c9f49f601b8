"""Estimates a run before it is started: memory, places, and speed by a simulation of the RL loop."""
