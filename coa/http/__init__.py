"""HTTP with other people's servers: a client with limits, which addresses may be read, and reading bodies safely."""
