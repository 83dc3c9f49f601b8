"""Tools that a policy calls: the interface, caches and layouts; search, web and sandbox are in subpackages."""
