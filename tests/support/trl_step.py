"""One step of TRL's SFTTrainer on an exported data set, in a process of its own.

python -m tests.support.trl_step MODEL EXPORT        prints the batch with its labels, and whether the weights moved
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import datasets
import datasets.config
import torch
import trl
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(model: Path, export: Path) -> None:
    datasets.config.HF_HUB_OFFLINE = True
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    seen: list[dict[str, Any]] = []

    class Trainer(trl.SFTTrainer):  # pyright: ignore[reportPrivateImportUsage]
        def compute_loss(self, model: Any, inputs: Any, *more: Any, **named: Any) -> Any:
            seen.append({key: inputs[key].tolist() for key in ("input_ids", "labels")})
            return super().compute_loss(model, inputs, *more, **named)

    tokenizer = AutoTokenizer.from_pretrained(model)
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            model=policy,
            processing_class=tokenizer,
            train_dataset=datasets.load_dataset(str(export), split="train", cache_dir=f"{folder}/cache"),
            args=trl.SFTConfig(  # pyright: ignore[reportPrivateImportUsage]
                output_dir=f"{folder}/trained",
                max_length=None,
                max_steps=1,
                per_device_train_batch_size=4,
                use_cpu=True,
                bf16=False,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
            ),
        ).train()
    moved = any(not torch.equal(before[name], value) for name, value in policy.state_dict().items())
    print(json.dumps({"batch": seen, "moved": moved, "pad": tokenizer.pad_token_id}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
