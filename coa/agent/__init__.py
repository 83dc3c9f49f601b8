"""How one model acts as a team: its grammar, its tokens, its profiles, and the episode that it plays."""
