"""What a person can ask for: a file for each command. The table of them all is in `jobs.cli`."""
