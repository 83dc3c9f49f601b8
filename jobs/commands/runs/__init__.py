"""Commands that inspect a run's records, or test its fault tolerance."""
