"""Limits of a key, of a request and of a busy server."""
