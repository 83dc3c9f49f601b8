"""The teachers of a run: who plays, who judges, what they cost, and what they add to reinforcement."""
