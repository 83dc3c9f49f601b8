"""Models that the installed vLLM can serve: its architectures and its kinds of quantised weights."""

import json
import subprocess
import sys
from collections.abc import Callable, Collection
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

from coa.errors import InfrastructureError, UserError
from coa.planning.models import KNOWN
from coa.pretrained.fit import causal_class
from coa.pretrained.folder import Pretrained

ANSWER_S = 120.0
"""Maximum seconds until vLLM is imported."""
ASK = """
import json
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
from vllm.model_executor.models.registry import ModelRegistry
from vllm.platforms import current_platform
kinds = [one for one in QUANTIZATION_METHODS if one in (current_platform.supported_quantization or [one])]
print(json.dumps([sorted(ModelRegistry.get_supported_archs()), kinds]))
"""
OTHER_NAMES = {"auto-round": "inc", "compressed_tensors": "compressed-tensors"}
"""vLLM's names of methods that have another one in a `config.json`."""


class Supported(NamedTuple):
    architectures: Collection[str]
    """Class names, as in a `config.json`."""
    quantizations: Collection[str]
    """Names of methods that it knows and that run on this machine's device."""


@cache
def ask_vllm() -> Supported:
    """Asks vLLM what it supports; raises InfrastructureError if it can't be imported."""
    command = [sys.executable, "-c", ASK]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=True)
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(f"vLLM was not imported within {ANSWER_S:g} s") from error
    except subprocess.CalledProcessError as error:
        why = [f"status {error.returncode}", *error.stderr.strip().splitlines()][-1]
        raise InfrastructureError(f"vLLM can't be imported: {why}") from error
    return Supported(*json.loads(done.stdout.strip().splitlines()[-1]))


def check_supported(found: Pretrained, ask: Callable[[], Supported] = ask_vllm) -> None:
    """Raises UserError if vLLM can't serve the model. Asks vLLM, in a process of its own that takes seconds, only about
    models of other kinds than `coa.planning.models.KNOWN`, and about quantised ones."""
    if not found.architectures:
        raise UserError(f"{found.folder}: its config.json names no architectures, without which vLLM can't serve it")
    if find_spec("vllm") is None or (found.config.model_type in KNOWN and not found.quantization):
        return
    supported = ask()
    method = found.quantization.lower()
    if method and OTHER_NAMES.get(method, method) not in supported.quantizations:
        raise UserError(f"{found.folder}: its weights are quantised ({found.quantization}), which vLLM can't load here")
    if not set(found.architectures) & set(supported.architectures) and not _by_transformers(found):
        raise UserError(f"{found.folder}: vLLM has no {found.architectures[0]}")


def _by_transformers(found: Pretrained) -> bool:
    """Whether vLLM can run transformers' own class of the model."""
    own = causal_class(found.config)
    return own is not None and own.is_backend_compatible()
