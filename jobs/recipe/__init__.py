"""Recipes: what they can say, and what they would do."""
