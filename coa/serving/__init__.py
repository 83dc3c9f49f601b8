"""Serving of an agent: requests, events and responses in the protocols of its clients."""
