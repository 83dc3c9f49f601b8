"""Histograms of seconds in logarithmic buckets, and draws from them.

A bucket is named by its upper bound, and the next one is RATIO times as large: {"0.256": 3, "0.362": 1}. The first
bucket begins at 0.
"""

import math
from collections.abc import Mapping
from random import Random

FIRST = 0.001
"""Upper bound of the first bucket, in seconds."""
RATIO = math.sqrt(2)


def bucket_of(seconds: float) -> str:
    """Returns the upper bound of the bucket, as the key of a JSON object."""
    number = math.ceil(math.log(seconds / FIRST, RATIO)) if seconds > FIRST else 0
    return f"{FIRST * RATIO**number:.4g}"


def draw(histogram: Mapping[str, float], random: Random) -> float:
    """Returns the seconds of one call: a bucket by its count, and within it each logarithm with equal probability."""
    [bound] = random.choices(list(histogram), list(histogram.values()))
    return float(bound) * RATIO ** -random.random()
