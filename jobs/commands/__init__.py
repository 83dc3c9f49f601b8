"""The commands, a file for each. Their table is in `jobs.cli`."""
