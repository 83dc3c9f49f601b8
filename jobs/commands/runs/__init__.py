"""Commands that look at what a run has recorded."""
