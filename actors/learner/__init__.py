"""The learner group: DeepSpeed ranks under Ray Train, and the buffer that feeds them."""
