"""How weights get from learners to engines."""
