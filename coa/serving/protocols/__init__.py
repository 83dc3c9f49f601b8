"""The protocols of clients: their requests, and how an episode is written in each."""
