"""Tasks made of a user's own documents by a language model, after TaskCraft (arXiv 2506.10055)."""
