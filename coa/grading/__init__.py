"""Graders, which say how right an answer is, and rewards, which say what an episode is worth."""
