"""The distilled data set: what was kept of the team's runs, as a folder that common tools can read.

rows       one row for each kept run         shards      the Parquet files that hold them
tokens     their tokens and masks            summary     what is in a folder, counted
exports    for TRL and LLaMA-Factory         card        the Markdown beside the data
external   data sets of a user's or published ones, as rows and their counts
"""
