"""The stages of a run."""
