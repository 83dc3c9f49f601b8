"""What publishing costs a rank, in a process of its own: two buckets beside its part of the model."""

import json
from pathlib import Path

import pytest

from tests.support.weights import run_ranks

MIB = 2**20
SLACK = 24 * MIB
"""Of the allocator and of the pickled digests."""

PUBLISH = """
import deepspeed
from actors.learner.lora import Source
from actors.learner.zero import join_process_group
from actors.weights.parts import ModelParts
from actors.weights.ranks import Ranks
from actors.weights.transports import find_sender
from tests.support.weights import FolderWeightStore

def status(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name))

join_process_group()
settings = json.loads((folder / "settings.json").read_text())
layers, width, rank_of_adapter = 50, 1024, 8
sharded = settings["stage"] == 3
config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
with deepspeed.zero.Init(enabled=sharded, config_dict_or_path=config):
    model = torch.nn.ModuleList(torch.nn.Linear(width, 2 * width, bias=False) for _ in range(layers))
sources = []
for i, layer in enumerate(model):
    parameters = (layer.weight,)
    if settings["lora"]:
        pair = torch.ones(rank_of_adapter, width), torch.ones(2 * width, rank_of_adapter)
        parameters += tuple(torch.nn.Parameter(one) for one in pair)
    sources.append(Source(f"layers.{i}.weight", parameters, 0.5))
parts = ModelParts(sources, sharded=sharded, bucket_bytes=settings["bucket"])
sender = find_sender("host")(Ranks("node"), FolderWeightStore(str(folder)))
small = ModelParts(sources[:1], sharded=sharded, bucket_bytes=settings["bucket"])
sender.send(small, 0, "warm")
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = status("VmRSS")
sender.send(parts, 1, "1")
grown = status("VmHWM") - before
print(f"rank {rank}: publishing took {grown / 2**20:.1f} MiB", flush=True)
(folder / f"{rank}.json").write_text(json.dumps({"grown": grown, "model": parts.layout.nbytes}))
"""


@pytest.mark.parametrize(
    ("stage", "lora"),
    [
        pytest.param(3, False, id="stage 3"),
        pytest.param(1, False, id="stage 1", marks=pytest.mark.slow),
        pytest.param(1, True, id="adapters", marks=pytest.mark.slow),
    ],
)
def test_publishing_a_model_takes_two_buckets_beside_the_ranks_own_part(stage: int, lora: bool, tmp_path: Path) -> None:
    bucket = 16 * MIB
    (tmp_path / "settings.json").write_text(json.dumps({"stage": stage, "lora": lora, "bucket": bucket}))
    for rank in run_ranks(PUBLISH, 2, tmp_path):
        assert rank["model"] == 400 * MIB
        assert rank["grown"] <= 2 * bucket + SLACK
