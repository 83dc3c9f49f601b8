"""Data sets that a run is fine-tuned on instead of what it distils: of other runs, or the released AFM files.

sft.data: [runs/other/data, WebAgentSFTDataset.json] -> data/train-NNNNN.parquet -> tokens, card
"""

from pathlib import Path

from coa.chunks import chunks
from coa.data.released import import_released
from coa.data.rows import Demonstration
from coa.data.shards import CARD, read_rows, shard_paths, write_shard
from coa.distill.filters import FilterReport
from coa.usage import Usage
from jobs.run import Run
from jobs.start import add_tokens

SHARD_ROWS = 1000


def bring_data(run: Run) -> None:
    """Once: the card is written last. Rows of a released file that can't be read are listed in teachers/."""
    if (run.data / CARD).exists():
        return
    for old in shard_paths(run.data):
        old.unlink()
    shards = 0
    for path in map(Path, run.config.sft.data):
        if path.is_dir():
            for shard in chunks(read_rows(path), SHARD_ROWS):
                write_shard(run.data, shards, shard, _all_kept(shard))
                shards += 1
        else:
            told = import_released(path, run.data, run.teachers / f"{path.stem}-unread.jsonl", first=shards)
            run.console.say(f"{path.name}: {told.kept} of {told.rows} rows, {told.violations} against our tables")
            shards = len(shard_paths(run.data))
    add_tokens(run, FilterReport(), Usage())


def _all_kept(rows: list[Demonstration]) -> dict[str, int]:
    return {"rows": len(rows), "kept": len(rows)}
