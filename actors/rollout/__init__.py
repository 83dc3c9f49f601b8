"""Rollout engines: vLLM and the episodes played on it."""
