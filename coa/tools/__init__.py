"""Tools that a policy calls: the interface, caches and layouts of results here; search, web pages and sandbox below."""
