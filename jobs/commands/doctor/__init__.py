"""`coa doctor`: what a machine has and lacks."""
