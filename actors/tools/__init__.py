"""The tool executor, which makes all tool calls, and a local web site for web tools without internet access."""
