import math
from collections.abc import Sequence

import pytest

from coa.planning.search import COARSE, search


@pytest.mark.parametrize("size", [1, 2, 7, 30, 511])
def test_the_maximum_is_found_wherever_it_is(size: int) -> None:
    numbers = range(1, size + 1)
    for peak in numbers:
        tried: list[int] = []

        def values(numbers: Sequence[int], peak: int = peak, tried: list[int] = tried) -> list[float]:
            tried.extend(numbers)  # below, engines are too few, or learners
            return [min(number / peak, (size + 1 - number) / (size + 1 - peak)) for number in numbers]

        found = search(numbers, values)
        assert max(found, key=found.__getitem__) == peak
        assert list(found) == sorted(tried)
        assert len(tried) <= COARSE + 1 + 2 * math.ceil(math.log2(max(2, size / COARSE)) + 1)


def test_a_number_is_tried_in_any_case() -> None:
    found = search(range(1, 101), lambda numbers: [-abs(number - 3) for number in numbers], 77)
    assert found[77] == -74
    assert max(found, key=found.__getitem__) == 3
