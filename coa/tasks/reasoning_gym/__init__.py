"""Tasks of reasoning-gym (arXiv 2505.24760), generated and scored by the package itself."""
