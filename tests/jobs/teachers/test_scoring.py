"""What a scoring teacher's actor raises, as the stage sees it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayTaskError

from coa.errors import NotFinite
from jobs.teachers.scoring import TeacherScoring


def test_a_log_prob_that_is_no_number_is_told_without_rays_traceback() -> None:
    said = "2 of 7 log-probs of the teacher are not finite"

    async def weigh(samples: object) -> object:
        raise RayTaskError("weigh", "Traceback ...", NotFinite(said)).as_instanceof_cause()

    scorer: Any = SimpleNamespace(weigh=SimpleNamespace(remote=weigh))
    scoring = TeacherScoring(scorer)
    with pytest.raises(NotFinite) as failed:
        asyncio.run(scoring.weigh([]))
    assert str(failed.value) == said
