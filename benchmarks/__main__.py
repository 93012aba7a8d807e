"""`python -m benchmarks`: every comparison, one table."""

from benchmarks import checking, collectives, launching, slurm
from benchmarks.measure import show

if __name__ == "__main__":
    show([*launching.rows(), *checking.rows(), *collectives.rows(), *slurm.rows()])
