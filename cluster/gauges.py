"""Exports a run's records as Ray gauges, which Prometheus scrapes from each node: `reward/calc` is
`ray_coa_reward_calc`. Ray takes ASCII alone, so tags hold other characters as a URL does: `größe` is `gr%C3%B6%C3%9Fe`.
"""

import re
from collections.abc import Callable
from string import ascii_letters, digits
from typing import Any
from urllib.parse import quote

from coa.reporting.metrics import Record, measured

PREFIX = "coa_"
TAGS = ("run", "stage", "metric")
PLAIN = f"{ascii_letters}{digits} !#$&'()*+,-./:;<=>?@[]^_`{{|}}~"
"""Characters that a tag holds as they are: printable ASCII except %, and what Prometheus' text format escapes."""


def gauge_name(metric: str) -> str:
    """A gauge name that is valid in Prometheus; the tag `metric` holds the original name."""
    return PREFIX + re.sub(r"\W", "_", metric, flags=re.ASCII)


def tag(text: str) -> str:
    """The text in ASCII; different texts stay different, and `urllib.parse.unquote` gives them back."""
    return quote(text, safe=PLAIN, errors="surrogatepass")


class RayGauges:
    """A sink whose gauges hold each metric's last value."""

    NAME = "Ray's gauges"

    def __init__(self, run: str, make: Callable[..., Any] | None = None) -> None:
        """run: the run's name, a tag of every gauge. make: creates a gauge; None takes Ray's Gauge."""
        from ray.util.metrics import Gauge

        self._run, self._make = tag(run), make or Gauge
        self._gauges: dict[str, Any] = {}

    def __str__(self) -> str:
        return self.NAME

    def emit(self, record: Record) -> None:
        for metric, value in measured(record):
            name = gauge_name(metric)
            if name not in self._gauges:
                self._gauges[name] = self._make(name, description=tag(metric), tag_keys=TAGS)
            tags = {"run": self._run, "stage": tag(record["stage"]), "metric": tag(metric)}
            self._gauges[name].set(float(value), tags=tags)

    def close(self) -> None:
        self._gauges.clear()
