"""Recipes: their settings, checks and forecasts."""
