"""Storage on disk: files that are whole or absent, JSON lines, ledgers, and columns of Parquet tables."""
