"""A run's records as gauges of Ray, which Prometheus reads from each node: `reward/calc` is `ray_coa_reward_calc`."""

import re
from collections.abc import Callable
from typing import Any

from coa.reporting.metrics import Record, measured

PREFIX = "coa_"
TAGS = ("run", "stage", "metric")


def gauge_name(metric: str) -> str:
    """A name that Prometheus takes; the tag `metric` holds the exact one."""
    return PREFIX + re.sub(r"\W", "_", metric, flags=re.ASCII)


class RayGauges:
    """A sink whose gauges hold each metric's last value."""

    def __init__(self, run: str, make: Callable[..., Any] | None = None) -> None:
        """run: its name, a tag of every gauge. make: makes a gauge of a name; None takes Ray's."""
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
