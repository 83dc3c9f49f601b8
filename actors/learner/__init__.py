"""The learner group: DeepSpeed ranks under Ray Train, and what feeds them."""
