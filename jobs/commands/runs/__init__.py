"""Commands that look at what a run has recorded, and at what it withstands."""
