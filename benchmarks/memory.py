"""The peak memory of a training step of one peer, in a process of its own."""

import sys

from .training import memory_of
from .work import FULL, QUICK

if __name__ == "__main__":
    name, size, *quick = sys.argv[1:]
    print(memory_of(name, size, QUICK if quick else FULL))
