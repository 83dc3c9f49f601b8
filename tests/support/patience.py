PATIENCE_S = 300.0
"""Seconds to wait for what normally happens at once: only what never happens takes them."""
