"""The HTTP server of an agent foundation model (AFM): the agent, or the model without tools."""
