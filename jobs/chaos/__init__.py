"""`coa chaos`: reinforcement under kills, and whether its result and its accounts stay right."""
