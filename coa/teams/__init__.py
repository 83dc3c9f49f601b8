"""The multi-agent teams that are the teachers: roles, the rules of three kinds of teams, runs and transcripts."""
