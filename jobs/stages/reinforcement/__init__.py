"""The loops of the RL stage, and the groups that they play."""
