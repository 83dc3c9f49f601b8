"""A cluster that others have started: how a job gets there, and what its nodes must share."""
