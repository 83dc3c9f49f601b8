"""What shows that an engine computes with the weights that it was given."""
