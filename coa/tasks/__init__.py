"""Tasks, which are questions with verifiable answers: loading them, and selecting those that are worth reinforcing."""
