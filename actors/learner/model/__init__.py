"""The model that a rank trains: loaded or new, and compared with itself."""
