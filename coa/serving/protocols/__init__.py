"""The protocols of clients: their requests, and the format of an episode in each."""
