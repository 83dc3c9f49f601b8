"""The tool wiki_search: searches a corpus of passages by words (BM25) or by meaning (dense vectors)."""
