import time
import urllib.request
from typing import Any

from cluster.gauges import RayGauges, gauge_name

RECORD = {"stage": "rl", "step": 3, "time": 1.0, "loss": 0.25, "reward/calc": 1, "note": "text"}


class Kept:
    """A gauge that keeps what it is set to."""

    def __init__(self, name: str, **_: Any) -> None:
        self.name = name
        self.values: list[tuple[float, dict[str, str]]] = []

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.values.append((value, tags))


def test_every_number_of_a_record_is_a_gauge_under_its_name() -> None:
    made: list[Kept] = []

    def make(name: str, **others: Any) -> Kept:
        made.append(Kept(name, **others))
        return made[-1]

    gauges = RayGauges("demo", make)
    gauges.emit(RECORD)
    gauges.emit({**RECORD, "loss": 0.5})
    tags = {"run": "demo", "stage": "rl"}
    assert {gauge.name: gauge.values for gauge in made} == {
        "coa_loss": [(0.25, {**tags, "metric": "loss"}), (0.5, {**tags, "metric": "loss"})],
        "coa_reward_calc": [(1.0, {**tags, "metric": "reward/calc"})] * 2,
    }


def test_names_are_those_that_prometheus_takes() -> None:
    assert gauge_name("reward/math500/level 1") == "coa_reward_math500_level_1"
    assert gauge_name("reward/häuser") == "coa_reward_h_user"


def test_a_driver_of_ray_shows_them_to_prometheus(ray_session: None) -> None:
    import ray

    gauges = RayGauges("demo")
    gauges.emit(RECORD)
    [node] = ray.nodes()
    deadline, shown = time.monotonic() + 60, ""
    while 'metric="reward/calc"' not in shown:
        assert time.monotonic() < deadline, "no gauge within a minute"
        time.sleep(0.5)
        with urllib.request.urlopen(f"http://127.0.0.1:{node['MetricsExportPort']}/metrics", timeout=5) as page:
            shown = page.read().decode()
    [line] = [line for line in shown.splitlines() if line.startswith("ray_coa_reward_calc{")]
    assert line.endswith(" 1.0")
