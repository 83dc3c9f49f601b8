"""A run's folder: its layout, journals and stores, and what the console shows of a run."""
