import time
from itertools import count
from pathlib import Path
from typing import Any

from cluster.start_signs import signs_of, with_signs
from tests.support.patience import soon


class Slow:
    """An actor whose constructor takes until a file is there, and says how far it is."""

    def __init__(self, *, incarnation: str, until: Path) -> None:
        self.incarnation = incarnation
        for share in count():
            print(f"weights: {share / 100} %", flush=True)
            time.sleep(0.1)
            if until.exists():
                break

    async def ready(self) -> str:
        return f"{type(self).__name__} {self.incarnation}"


def test_an_actor_shows_progress_while_it_is_made_and_none_once_it_is_ready(ray_session: None, tmp_path: Path) -> None:
    import ray

    make = ray.remote(with_signs(Slow, every_s=0.2))
    actor: Any = make.remote(incarnation="a-0", until=tmp_path / "made")
    answer: Any = actor.ready.remote()
    first = soon(lambda: signs_of("a-0"))
    assert first
    assert soon(lambda: signs_of("a-0") > first)
    (tmp_path / "made").touch()
    assert ray.get(answer) == "Slow a-0"
    assert soon(lambda: not signs_of("a-0"))
    ray.kill(actor)
