"""Rewritings of gold answers to problems of mathematics, by rule."""
