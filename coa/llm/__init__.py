"""Clients of language models behind OpenAI-compatible endpoints: requests, limits, retries, typed failures."""
