"""`python -m benchmarks [SUBJECT ...]`: all comparisons or some, a table after each subject."""

import argparse

from tqdm import tqdm

from benchmarks import (
    asynchrony,
    automatic,
    checking,
    checkpoints,
    collectives,
    compression,
    experts,
    horovod,
    hybrid,
    imports,
    launching,
    memory,
    pipeline,
    published,
    simulator,
    slurm,
    smpi,
    staying,
    tensor,
)
from benchmarks.measure import RESULTS, show

SUBJECTS = (
    imports,
    launching,
    horovod,
    checking,
    collectives,
    pipeline,
    tensor,
    experts,
    hybrid,
    memory,
    compression,
    published,
    automatic,
    simulator,
    staying,
    asynchrony,
    smpi,
    checkpoints,
    slurm,
)

if __name__ == "__main__":
    by_name = {subject.__name__.removeprefix("benchmarks."): subject for subject in SUBJECTS}
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=", ".join(by_name))
    subjects = parser.parse_args().subjects or list(by_name)
    for unknown in set(subjects) - set(by_name):
        parser.error(f"There is no subject {unknown}. There are: {', '.join(by_name)}.")
    for name in tqdm(subjects, disable=None, unit="subject"):
        show(by_name[name].rows(), f"{name}: medians of one run on this machine")
    print(f"Written to {RESULTS}")
