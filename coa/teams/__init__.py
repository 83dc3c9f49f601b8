"""The multi-agent teams that teach: roles, the rules of three kinds of teams, runs and their transcripts."""
