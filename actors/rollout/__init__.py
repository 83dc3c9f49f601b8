"""Rollout engines: vLLM and the episodes that it plays."""
