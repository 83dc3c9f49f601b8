"""Where the gain comes from: chains without some of their tags, and stages left out."""
