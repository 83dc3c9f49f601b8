"""Commands that check what a run has recorded."""
