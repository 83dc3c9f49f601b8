"""HTTP requests to other servers: a client with limits, rules for addresses, and safe reading of bodies."""
