"""Commands that print what there is to choose from."""
