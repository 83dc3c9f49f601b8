"""Tasks, which are questions with verifiable answers: loading them, and selecting those for RL."""
