"""Metrics, statistics, plots and pages of a run."""
