"""The server of an AFM: an agent, or the model alone, behind HTTP."""
