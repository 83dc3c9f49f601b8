"""The memory of an engine; that of a rank is tested by measuring (tests/actors/learner/test_sizes.py) and by the
published 32B (tests/jobs/recipe/test_dry_run.py)."""

from coa.planning.memory import GIB, GRAPHS, engine_memory, kv_bytes
from coa.planning.models import Architecture, architecture_of, published


def built(name: str) -> Architecture:
    found = architecture_of(published(name) or {})
    assert found is not None
    return found


def test_the_cache_of_an_engine_is_what_its_weights_and_its_work_leave() -> None:
    model = built("Qwen/Qwen2.5-7B")
    found = engine_memory(model, "bfloat16", tensor_parallel=1, max_concurrent=128, given=70 * GIB)
    assert found.weights == 2 * model.parameters
    assert found.workspace == 2 * 8192 * (2 * 3584 + model.kept) + 8 * 128 * 152064 + GRAPHS
    assert found.total == 70 * GIB
    assert found.kv_token == 2 * 2 * 28 * 4 * 128
    assert found.tokens == (70 * GIB - found.weights - found.workspace) // found.kv_token


def test_an_engine_without_room_for_its_weights_has_no_cache() -> None:
    found = engine_memory(built("Qwen/Qwen2.5-32B"), "bfloat16", tensor_parallel=1, max_concurrent=8, given=40 * GIB)
    assert found.kv_cache < 0
    assert found.tokens == 0
    assert found.total == found.weights + found.workspace


def test_a_key_value_head_is_on_one_gpu_at_the_least() -> None:
    model = built("Qwen/Qwen2.5-7B")
    whole = kv_bytes(model, "bfloat16", 1)
    assert kv_bytes(model, "bfloat16", 2) == whole // 2
    assert kv_bytes(model, "bfloat16", 4) == kv_bytes(model, "bfloat16", 8) == whole // 4
