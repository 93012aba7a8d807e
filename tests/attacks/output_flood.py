"""Prints, and writes to every standard descriptor, far more than anybody reads."""

import os


def amdahl_speedup(parallel_fraction, workers):
    for _ in range(300):
        print("x" * 2**20)
        for descriptor in (1, 2):
            os.write(descriptor, b"x" * 2**16)
    return 0.0
