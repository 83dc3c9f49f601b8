"""Clusters that are already running: how a job is sent there, and what their nodes have to share."""
