"""`coa ask`: one question to a model, with its tools, in the terminal."""
