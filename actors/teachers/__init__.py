"""Actors of distillation: the team that plays runs, and the language models that its roles think with."""
