import math
from random import Random

import pytest

from coa.tools.seconds import FIRST, RATIO, bucket_of, draw


def test_a_bucket_is_named_by_its_upper_bound() -> None:
    assert [bucket_of(seconds) for seconds in (0.0, 0.0005, 0.001, 0.00101, 0.3, 30.0)] == [
        "0.001",
        "0.001",
        "0.001",
        "0.001414",
        "0.362",
        "32.77",
    ]
    for number in range(1, 40):
        inside = FIRST * RATIO ** (number - 0.5)
        assert inside <= float(bucket_of(inside)) < inside * RATIO


@pytest.mark.parametrize("tail", [2.0, 10.0, 30.0])
def test_a_distribution_comes_back_with_its_tail(tail: float) -> None:
    """A log-normal one, whose 99th percentile is `tail` times its median."""
    random, sigma, histogram = Random(0), math.log(tail) / 2.326, dict[str, int]()
    for _ in range(50_000):
        bucket = bucket_of(0.3 * math.exp(random.gauss(0, sigma)))
        histogram[bucket] = histogram.get(bucket, 0) + 1
    drawn = sorted(draw(histogram, random) for _ in range(50_000))
    assert drawn[25_000] == pytest.approx(0.3, rel=0.05)
    assert drawn[49_500] == pytest.approx(0.3 * tail, rel=0.2)
