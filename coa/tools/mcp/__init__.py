"""Tools of MCP servers that an operator names, behind tags of a profile."""
