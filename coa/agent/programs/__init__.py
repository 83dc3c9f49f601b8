"""Agents that somebody else wrote, as episodes: programs that ask the policy by themselves."""
