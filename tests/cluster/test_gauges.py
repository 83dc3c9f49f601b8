from contextlib import suppress
from typing import Any
from urllib.parse import unquote
from urllib.request import urlopen

from hypothesis import given
from hypothesis import strategies as st

from cluster.gauges import RayGauges, gauge_name, tag
from tests.support.patience import soon

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


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_tags_are_printable_ascii_and_different_for_different_texts(text: str) -> None:
    shown = tag(text)
    assert shown.isascii()
    assert not shown or shown.isprintable()
    assert not set(shown) & set('"\\')
    assert unquote(shown, errors="surrogatepass") == text


def test_metrics_whose_gauge_has_the_same_name_are_told_apart_by_their_tag() -> None:
    made: list[Kept] = []

    def make(name: str, **others: Any) -> Kept:
        assert all(text.isascii() for text in (name, others["description"]))
        made.append(Kept(name, **others))
        return made[-1]

    RayGauges("größe 1", make).emit({"stage": "rl", "step": 1, "reward/Häuser": 0.25, "reward/Hüuser": 0.5})
    [gauge] = made
    assert gauge.name == "coa_reward_H_user"
    assert [(value, tags["run"], tags["metric"]) for value, tags in gauge.values] == [
        (0.25, "gr%C3%B6%C3%9Fe 1", "reward/H%C3%A4user"),
        (0.5, "gr%C3%B6%C3%9Fe 1", "reward/H%C3%BCuser"),
    ]


def test_a_driver_of_ray_shows_them_to_prometheus(ray_session: None) -> None:
    import ray

    gauges = RayGauges('größe {1}, "x" = 東京 \\ 😀\n#')
    gauges.emit({**RECORD, 'reward/Städte/東京 "x"': 0.75})
    [node] = ray.nodes()

    def page() -> str:
        """What the node shows, once our gauges are among it."""
        with suppress(OSError), urlopen(f"http://127.0.0.1:{node['MetricsExportPort']}/metrics") as answer:
            text = answer.read().decode()
            return text if 'metric="reward/calc"' in text else ""
        return ""

    shown = soon(page)
    [line] = [line for line in shown.splitlines() if line.startswith("ray_coa_reward_calc{")]
    assert line.endswith(" 1.0")
    assert 'run="gr%C3%B6%C3%9Fe {1}, %22x%22 = %E6%9D%B1%E4%BA%AC %5C %F0%9F%98%80%0A#"' in line
    assert 'metric="reward/St%C3%A4dte/%E6%9D%B1%E4%BA%AC %22x%22"' in shown
