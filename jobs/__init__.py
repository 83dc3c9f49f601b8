"""The parts that a user runs: the command line, the stages of a run, recipes, and the run's folder."""
