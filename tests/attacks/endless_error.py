"""Raises an error whose text never ends, and whose class lies about itself."""


class Endless(Exception):
    def __str__(self):
        while True:
            pass

    __repr__ = __str__


def amdahl_speedup(parallel_fraction, workers):
    raise Endless
