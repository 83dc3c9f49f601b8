"""`python -m benchmarks.chaos`: kills processes during RL, and checks that results and ledger stay correct."""
