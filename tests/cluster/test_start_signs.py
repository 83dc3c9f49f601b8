import time
from typing import Any

from cluster import start_signs
from cluster.start_signs import signs_of, with_signs


class Slow:
    """An actor whose constructor takes a while, and says so."""

    def __init__(self, *, incarnation: str, seconds: float) -> None:
        self.incarnation = incarnation
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            print(f"weights: {100 - 100 * (ends - time.monotonic()) / seconds:.1f} %", flush=True)
            time.sleep(0.1)

    async def ready(self) -> str:
        return f"{type(self).__name__} {self.incarnation}"


def test_an_actor_shows_progress_while_it_is_made_and_none_once_it_is_ready(ray_session: None) -> None:
    import ray

    make = ray.remote(with_signs(Slow))
    actor: Any = make.remote(incarnation="a-0", seconds=start_signs.EVERY_S * 2.5)
    seen: list[int] = []
    answer: Any = actor.ready.remote()
    while not ray.wait([answer], timeout=0.5)[0]:
        seen.append(signs_of("a-0"))
    assert ray.get(answer) == "Slow a-0"
    steps = sorted({count for count in seen if count})
    assert len(steps) >= 2, "it was made for longer than two of the intervals"
    deadline = time.monotonic() + 30
    while signs_of("a-0"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    ray.kill(actor)
