"""Exports a run's records as Ray gauges, which Prometheus scrapes from each node: `reward/calc` is
`ray_coa_reward_calc`."""

import re
from collections.abc import Callable
from typing import Any

from coa.reporting.metrics import Record, measured

PREFIX = "coa_"
TAGS = ("run", "stage", "metric")


def gauge_name(metric: str) -> str:
    """A gauge name that is valid in Prometheus; the tag `metric` holds the original name."""
    return PREFIX + re.sub(r"\W", "_", metric, flags=re.ASCII)


class RayGauges:
    """A sink whose gauges hold each metric's last value."""

    def __init__(self, run: str, make: Callable[..., Any] | None = None) -> None:
        """run: the run's name, a tag of every gauge. make: creates a gauge; None takes Ray's Gauge."""
        from ray.util.metrics import Gauge

        self._run, self._make = run, make or Gauge
        self._gauges: dict[str, Any] = {}

    def emit(self, record: Record) -> None:
        for metric, value in measured(record):
            name = gauge_name(metric)
            if name not in self._gauges:
                self._gauges[name] = self._make(name, description=metric, tag_keys=TAGS)
            tags = {"run": self._run, "stage": record["stage"], "metric": metric}
            self._gauges[name].set(float(value), tags=tags)

    def close(self) -> None:
        self._gauges.clear()
