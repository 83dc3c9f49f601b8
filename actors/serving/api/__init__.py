"""Handlers of the server's protocols."""
