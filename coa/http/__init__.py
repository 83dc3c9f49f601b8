"""HTTP with servers of others: a client with limits, which addresses may be read, and reading bodies safely."""
