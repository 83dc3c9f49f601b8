"""The team of teachers: roles, router, transcript, and scripted experts in the place of language models."""
