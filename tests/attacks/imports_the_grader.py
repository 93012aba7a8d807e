"""Imports the grader's own module, and asks it for the seed and the expected value."""


def amdahl_speedup(parallel_fraction, workers):
    from graders.grading.rng import Rng
    from graders.units.unit_00 import speedup

    return float(speedup._draw_fraction(Rng()))
