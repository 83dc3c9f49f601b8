"""The teachers of a run: teams that play, models that judge, their cost, and their part in reinforcement."""
