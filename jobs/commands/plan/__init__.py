"""`coa plan`."""
