"""The distilled data set: what was kept of the team's runs, as a folder that anybody's tools can read.

rows       one row for each kept run         shards      the Parquet files that hold them
tokens     their tokens and masks            summary     what is in a folder, counted
exports    for TRL and LLaMA-Factory         *_card      the Markdown beside the data and the model
released   the published AFM sets as rows    layout      how those write their tags
"""
