"""The loops of reinforcement, and the groups that they play."""
