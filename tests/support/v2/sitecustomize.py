"""Makes vLLM's CPU build run its runner for GPUs (Model Runner V2), whose kernels Triton interprets:

    PYTHONPATH=tests/support/v2 COA_V2=1 python -m pytest tests/actors/rollout/test_engine.py

With COA_ASYNC=1 also its asynchronous scheduler. Python imports this file at the start of each process, because of its
name.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from typing import Any

PLATFORM, BACKENDS, INTERPRETER = "vllm.platforms.cpu", "triton.backends", "triton.runtime.interpreter"
SYNCHRONOUS = "scheduler_config.async_scheduling = False"
"""A line of the platform that the asynchronous scheduler needs otherwise."""


class Interpreted:
    """A driver of Triton that has no device."""

    @staticmethod
    def is_active() -> bool:
        return True


def take_whole_numbers(builder: Any) -> None:
    """Lets a masked store take a mask of 0 and 1, which a compiled kernel takes: `&` of a scalar and a block of truths,
    as in the kernel of enforced grammars, is one."""
    store = builder.create_masked_store

    def stored(self: Any, pointers: Any, values: Any, mask: Any, *rest: Any) -> Any:
        mask.data = mask.data.astype(bool)
        return store(self, pointers, values, mask, *rest)

    builder.create_masked_store = stored


class Changing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads the three modules, changed."""

    def __init__(self) -> None:
        self._loaders: dict[str, Any] = {}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname not in (PLATFORM, BACKENDS, INTERPRETER):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            self._loaders[fullname], spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        loader = self._loaders[module.__name__]
        if module.__name__ == PLATFORM:
            source = loader.get_source(PLATFORM)
            if SYNCHRONOUS not in source:
                raise ImportError(f"{PLATFORM} has no line `{SYNCHRONOUS}` any more")
            if os.environ.get("COA_ASYNC") == "1":
                source = source.replace(SYNCHRONOUS, SYNCHRONOUS.replace("False", "True"))
            exec(compile(source, loader.path, "exec"), vars(module))
            return
        loader.exec_module(module)
        if module.__name__ == BACKENDS:
            module.backends["cpu"] = module.Backend(compiler=None, driver=Interpreted)
        else:
            take_whole_numbers(module.InterpreterBuilder)


if os.environ.get("COA_V2") == "1":
    os.environ.update(TRITON_INTERPRET="1", VLLM_USE_V2_MODEL_RUNNER="1")
    sys.meta_path.insert(0, Changing())
