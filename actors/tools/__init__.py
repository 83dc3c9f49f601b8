"""The tool executor, which all tool calls go through, and a web site for tools that stay in a closed world."""
