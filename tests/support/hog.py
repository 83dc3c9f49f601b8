"""Fills a cluster's object store, and the disk that it spills to, and keeps them full until stdin ends.

python -m tests.support.hog ADDRESS
"""

import sys

import numpy as np
import ray
from ray.exceptions import ObjectStoreFullError, OutOfDiskError

PIECES = (8 << 20, 1 << 20)


def main(address: str) -> None:
    ray.init(address=address, namespace="hog", log_to_driver=False)
    held = []
    for size in PIECES:
        try:
            while True:
                held.append(ray.put(np.full(size, len(held) % 256, np.uint8)))
        except (ObjectStoreFullError, OutOfDiskError):
            pass
    print("full", len(held), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
