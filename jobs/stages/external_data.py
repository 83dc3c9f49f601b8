"""Data sets that a run is fine-tuned on instead of distilling: those of other runs, released AFM files, or other files
(`coa.distill.sources.rows`).

sft.data: [runs/other/data, WebAgentSFTDataset.json] -> data/train-NNNNN.parquet -> tokens, card
          without tasks of evaluation sets
"""

from pathlib import Path

from coa.distill.contamination import NAMED, OWN
from coa.distill.dataset.external import add_rows, external_counts, read_run
from coa.distill.dataset.shards import CARD, is_data_set, shard_paths
from coa.distill.drop_report import FilterReport
from coa.distill.sources.demonstrations import read_data
from coa.errors import UserError
from coa.usage import Usage
from jobs.run.run_dir import RunDir
from jobs.stages.distill import contamination_of
from jobs.stages.start import add_tokens, own_columns


def add_external_data(run: RunDir) -> None:
    """Adds the data sets of `sft.data`, unless the data card, which is written last, exists. Rows that are left out are
    listed in teachers/, in a file for each data set.

    Raises UserError if no row is left to train on.
    """
    if (run.data / CARD).exists():
        return
    for old in shard_paths(run.data):
        old.unlink()
    contamination = contamination_of(run)
    for number, path in enumerate(map(Path, run.config.sft.data)):
        own, profile = is_data_set(path), run.config.tasks.profile
        read = read_run(path, contamination) if own else read_data(path, contamination, profile)
        listing = run.teachers / f"left-out-{number}.jsonl"
        first = len(shard_paths(run.data))
        counts = add_rows(read, run.data, listing, first=first, own=own_columns(run))
        left_out = [
            f"; {n} left out as {kind}"
            for kind in (NAMED, OWN)
            if (n := sum(n for reason, n in counts.contaminated.items() if reason.startswith(kind)))
        ]
        run.console.say(
            f"{path.name}: {counts.kept} of {counts.rows} rows, {counts.violations} violate their profile's table of "
            f"transitions{''.join(left_out)}"
        )
    counts = external_counts(run.data)
    if not counts.kept:
        raise UserError(f"sft.data: {counts.none_kept}")
    transcripts = counts.kept + sum(counts.contaminated.values())
    add_tokens(run, FilterReport(transcripts=transcripts, kept=counts.kept, dropped=counts.contaminated), Usage())
