"""The distilled data set: the team runs that were kept, as a folder that common tools can read.

rows       one row for each kept run         shards      the Parquet files that hold them
tokens     their tokens and masks            summary     counts of a folder's contents
exports    for TRL and LLaMA-Factory         card        the Markdown beside the data
external   rows from a user's own or a published data set, and their counts
"""
