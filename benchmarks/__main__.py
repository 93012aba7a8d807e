"""`python -m benchmarks`: every comparison, one table."""

from benchmarks import (
    asynchrony,
    checking,
    checkpoints,
    collectives,
    horovod,
    imports,
    launching,
    memory,
    pipeline,
    simulator,
    slurm,
    smpi,
    tensor,
)
from benchmarks.measure import show

SUBJECTS = (
    imports,
    launching,
    horovod,
    checking,
    collectives,
    pipeline,
    tensor,
    memory,
    simulator,
    asynchrony,
    smpi,
    checkpoints,
    slurm,
)

if __name__ == "__main__":
    show([row for subject in SUBJECTS for row in subject.rows()])
