"""What ends the learners is raised as what it is."""

import pytest

from cluster.learner_group import raise_cause
from coa.errors import OutOfMemory, UserError

NO_MEMORY = """Training failed due to controller error:
6 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 192.0.2.2) was 22.1GB / 23.5GB
Refer to the documentation on how to address the out of memory issue: https://docs.ray.io/"""


def test_an_end_for_want_of_memory_says_so_and_how_much_there_was() -> None:
    with pytest.raises(OutOfMemory, match=r"for want of memory: 22\.1GB / 23\.5GB; --dry-run shows"):
        raise_cause(RuntimeError(NO_MEMORY))


def test_a_mistake_that_a_learner_found_is_raised_as_that() -> None:
    failed = RuntimeError("a rank failed")
    failed.__cause__ = UserError("no such model")
    with pytest.raises(UserError, match="no such model"):
        raise_cause(failed)


def test_anything_else_is_raised_as_it_is() -> None:
    with pytest.raises(KeyError):
        raise_cause(KeyError("x"))
