"""Graders, which grade answers, and rewards, which are computed from an episode's grade and other terms."""
