"""Language models behind OpenAI-compatible endpoints: how they are asked, within which limits, and how they fail."""
