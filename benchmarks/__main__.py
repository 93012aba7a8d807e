"""`python -m benchmarks`: every comparison, one table."""

from benchmarks import checking, launching, slurm
from benchmarks.measure import show

if __name__ == "__main__":
    show([*launching.rows(), *checking.rows(), *slurm.rows()])
