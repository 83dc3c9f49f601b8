"""Data sets that a run is fine-tuned on instead of what it distils: of other runs, or the released AFM files.

sft.data: [runs/other/data, WebAgentSFTDataset.json] -> data/train-NNNNN.parquet -> tokens, card
          without what stands in an evaluation set
"""

from pathlib import Path

from coa.data.brought import bring, brought, read_run
from coa.data.released import read_released
from coa.data.shards import CARD, shard_paths
from coa.distill.filters import FilterReport
from coa.errors import UserError
from coa.usage import Usage
from jobs.distill import contamination_of
from jobs.run import Run
from jobs.start import add_tokens


def bring_data(run: Run) -> None:
    """Once: the card is written last. Rows that are left out are listed in teachers/, a file for each of `sft.data`.

    Raises UserError where no row is left to train on.
    """
    if (run.data / CARD).exists():
        return
    for old in shard_paths(run.data):
        old.unlink()
    contamination = contamination_of(run)
    for number, path in enumerate(map(Path, run.config.sft.data)):
        read = read_run(path, contamination) if path.is_dir() else read_released(path, contamination)
        listing = run.teachers / f"left-out-{number}.jsonl"
        told = bring(read, run.data, listing, first=len(shard_paths(run.data)))
        run.console.say(
            f"{path.name}: {told.kept} of {told.rows} rows, {told.violations} against our tables; "
            f"{sum(told.contaminated.values())} left out as in an evaluation set"
        )
    told = brought(run.data)
    if not told.kept:
        reasons = ", ".join(f"{reason}: {n}" for reason, n in told.dropped.items())
        raise UserError(f"sft.data: none of its {told.rows} rows can be trained on ({reasons})")
    transcripts = told.kept + sum(told.contaminated.values())
    add_tokens(run, FilterReport(transcripts=transcripts, kept=told.kept, dropped=told.contaminated), Usage())
