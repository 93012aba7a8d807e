"""Imports the grader's own module, and asks it for the seed and the expected value."""


def amdahl_speedup(parallel_fraction, workers):
    from graders.grading.rng import Rng
    from graders.units.unit_00 import amdahl_speedup

    fraction, workers = amdahl_speedup.fraction_and_workers(Rng(), amdahl_speedup.Work())
    return 1 / ((1 - fraction) + fraction / workers)
