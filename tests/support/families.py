"""Tiny models of every family of causal language models that transformers has, with their special features on, and what
the learner makes of them: the table of `docs/models.md`.

    python -m tests.support.families [FAMILY ...]    prints the table, or some rows of it
"""

import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from actors.learner.config import ALL_LINEAR, LoraConfig, ModelConfig
from actors.learner.lora import add_adapters
from actors.learner.model.load import load_model
from actors.learner.model.names import written_sources
from actors.learner.model.parity import settle, usual_tokens
from actors.learner.policy import TrainedPolicy, check_trained, to_tensors
from actors.weights.parts import ModelParts
from coa.errors import UserError
from coa.learning.packing import PackingConfig, pack
from coa.learning.samples import all_trained
from coa.pretrained.fit import causal_class
from coa.pretrained.shrink import shrunk
from coa.types import Tokens

SAME = 2e-3
"""Nats within which log-probs are the same in float32."""
SHORT, LONG = (40, 33, 7), (300, 290, 25)
"""Tokens of samples: rows that are attended with a mask, and longer ones. All are beyond the windows."""
FEATURES: dict[str, Any] = {
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 5.0,
    "logit_scale": 0.7,
    "logits_scaling": 0.7,
    "lm_head_multiplier": 0.7,
}
"""Settings at which a feature shows, for models that have it."""
ABSENT: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 16},
    "deepseek_v2": {"num_experts_per_tok": 2, "topk_method": "greedy"},
    "dots1": {"n_routed_experts": 8, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "ministral": {"head_dim": 128},
    "nemotron": {"head_dim": 128, "num_key_value_heads": 8},
    "diffllama": {"attention_dropout": 0.0},
    "phi3": {
        "original_max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0 + i / 48 for i in range(48)],
            "long_factor": [2.0 + i / 4 for i in range(48)],
        },
    },
}
"""Settings that a family's default configuration lacks, or leaves off."""


class Verdict(NamedTuple):
    family: str
    result: str
    """packed, one at a time, refused, wrong, or no model."""
    why: str = ""

    def row(self) -> str:
        """What the table says of it. Distances are left out: they differ from machine to machine."""
        why = re.sub(r"(log-probs are|it is|differs by) \S+ (nats|of)", r"\1 some \2", self.why)
        return f"| `{self.family}` | {why} |" if self.result == "refused" else f"`{self.family}`"


def families() -> list[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny_config(family: str) -> Any:
    """A small configuration of the family. Raises whatever its classes raise if its defaults make no model."""
    from transformers import AutoConfig

    config = shrunk(AutoConfig.for_model(family, **ABSENT.get(family, {})))
    for part in (config, config.get_text_config()):
        for name, value in list(vars(part).items()):
            if name in FEATURES and value is not None:
                setattr(part, name, FEATURES[name])
            elif re.fullmatch(r"(?!classifier|summary).*(dropout|_pdrop|jitter).*", name) and isinstance(value, float):
                setattr(part, name, 0.1 if name not in ABSENT.get(family, {}) else 0.0)
    return config


def made(config: Any, folder: Path) -> None:
    """Writes a model with weights, biases, norms and saved buffers that all matter."""
    torch.manual_seed(0)
    model = causal_class(config)._from_config(config, attn_implementation="eager")
    kept = dict(model.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.3 * min(1.0, (32 / parameter.shape[-1]) ** 0.5) if parameter.dim() > 1 else 0.1
            parameter.copy_(torch.randn_like(parameter) * spread + (parameter if parameter.dim() == 1 else 0))
        for name, buffer in model.named_buffers():
            if name in kept and buffer.is_floating_point():
                buffer.add_(torch.rand_like(buffer) * 0.2)
    model.save_pretrained(folder)


def plain(model: Any, sequences: list[Tokens]) -> list[Tensor]:
    """Log-probs by the model's own pass over each sequence."""
    found: list[Tensor] = []
    for one in sequences:
        ids = torch.from_numpy(one).long()
        with torch.no_grad():
            logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
        found.append(logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0])
    return found


def packed(policy: TrainedPolicy, sequences: list[Tokens]) -> list[Tensor]:
    """Log-probs as training computes them, in rows as this model is packed."""
    found: dict[int, Tensor] = {}
    for batch in pack([all_trained(one) for one in sequences], policy.packing(PackingConfig(share_prefixes=False))):
        with torch.no_grad():
            flat: Any = policy(**to_tensors(batch, torch.device("cpu"))).logprobs
        found |= dict(zip(batch.members, flat.split([len(sequences[i]) - 1 for i in batch.members]), strict=True))
    return [found[i] for i in range(len(sequences))]


def apart(one: list[Tensor], other: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def written(model: Any) -> dict[str, Tensor]:
    """The tensors that are saved and published."""
    parts = ModelParts(written_sources(model), sharded=False, bucket_bytes=2**20)
    flat = torch.cat([torch.from_numpy(piece.copy()) for _, piece in parts.pieces()])
    types = {"F32": torch.float32, "I64": torch.int64, "BOOL": torch.bool}
    return {
        span.name: flat[span.start : span.stop].view(types[span.dtype]).view(span.shape).clone()
        for span in parts.layout.tensors
    }


def as_hub(model: Any, folder: Path) -> bool:
    """Whether the tensors that are saved are those that transformers saves."""
    model.save_pretrained(folder / "theirs")
    theirs, ours = load_file(folder / "theirs" / "model.safetensors"), written(model)
    return theirs.keys() == ours.keys() and all(torch.equal(theirs[name], ours[name]) for name in theirs)


def saved(model: Any, folder: Path) -> Any:
    """The model that plain transformers loads from the weights that are saved and published."""
    save_file(written(model), folder / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(folder)
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    return loaded


def checks(config: Any, reference: Any, folder: Path) -> Iterator[tuple[str, Callable[[], float]]]:
    """What must be the same, each with its difference in nats; first, whether samples are packed."""
    policy = TrainedPolicy(load_model(folder, ModelConfig(path=str(folder)))).train()
    attention = "sdpa" if reference._supports_sdpa else "eager"
    check_trained(policy.model.config, attention, LoraConfig())
    settle(policy, policy)
    yield str(policy.way.packed), lambda: 0.0
    usual, rng = usual_tokens(config), np.random.default_rng(0)
    short, long = ([rng.choice(usual, n).astype(np.int32) for n in sizes] for sizes in (SHORT, LONG))
    if (getattr(config.get_text_config(), "max_position_embeddings", None) or 2048) < max(LONG):
        long = short
    rows = {"one sample": short[:1], "short rows": short, "long rows": long, "both": [short[2], long[0]]}
    for name, group in rows.items():
        yield name, lambda group=group: apart(packed(policy, group), plain(reference, group))
    hub = as_hub(policy.model, folder)
    yield "saved", lambda: apart(plain(saved(policy.model, folder), short), plain(reference, short))
    lora = LoraConfig(rank=2, targets=(ALL_LINEAR,))
    copied = check_trained(policy.model.config, attention, lora)
    add_adapters(policy.model, lora, copied.unused if copied else ())
    for name, parameter in policy.model.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter, std=0.1)
    adapted = packed(policy, short)
    yield "adapters", lambda: apart(plain(saved(policy.model, folder), short), adapted)
    yield "adapters do something", lambda: 0.0 if apart(plain(reference, short), adapted) > SAME else 1.0
    yield "names of the hub", lambda: 0.0 if hub else 1.0


def verdict(family: str) -> Verdict:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            config = tiny_config(family)
            made(config, folder)
            reference: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
            plain(reference, [np.full(5, 3, np.int32)])
        except Exception as error:  # a default configuration may raise anything
            return Verdict(family, "no model", said(error))
        try:
            results = checks(config, reference, folder)
            result = "packed" if next(results)[0] == "True" else "one at a time"
            for check, difference in results:
                if not (found := difference()) <= SAME:
                    return Verdict(family, "wrong", f"{check}: {found:.2g} nats")
        except UserError as error:
            return Verdict(family, "refused", str(error).replace(name, "its folder"))
        except Exception as error:
            return Verdict(family, "wrong", f"traceback: {said(error)}")
        return Verdict(family, result)


def said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"


def main() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    for family in sys.argv[1:] or families():
        found = verdict(family)
        print(found.result, found.row(), found.why, flush=True)


if __name__ == "__main__":
    main()
