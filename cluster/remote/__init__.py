"""Clusters that are already running: submitting jobs, and checks of versions and shared files."""
