"""What a run shows: metrics, statistics, plots and pages."""
