"""What each protocol asks of the server."""
