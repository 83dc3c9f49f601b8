"""The supervision of a learner group: its attempts, one after a failure, and its committed checkpoints."""
