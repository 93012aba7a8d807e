"""`course gpu`: measure, test, execute, and write what was found."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from course_lib.training.device import best_device
from workbook.build import Efforts
from workbook.errors import CommandFailed
from workbook.gpu import computing, loading, memory, parallel
from workbook.gpu.checks import gpu_tests, units_on_processes
from workbook.gpu.measure import Table
from workbook.gpu.report import REPORTS, machine, write_report
from workbook.gpu.sizes import FULL, Sizes
from workbook.paths import Places


def examine(places: Places, efforts: Efforts) -> None:
    """Do all that `course gpu` does. Raises CommandFailed where there is no GPU, or something goes wrong."""
    for earlier in REPORTS:
        (places.build / earlier).unlink(missing_ok=True)
    if not torch.cuda.is_available():
        raise CommandFailed(
            [
                f"course gpu needs a GPU, NVIDIA's or AMD's, and torch {torch.__version__} finds none here. "
                f"Call it on a node that has one, with a torch that was built for it. On a cluster, "
                f"course slurm render gpu >gpu.sbatch writes a batch script for that."
            ]
        )
    print(machine(), flush=True)
    tables, failures = measured(best_device(), torch.cuda.device_count(), FULL, places.solutions)
    # What was measured holds memory of the GPU that the ranks of tests and units need.
    torch.cuda.empty_cache()
    tests = gpu_tests(places.root)
    print(f"{len(tests)} tests, {sum(bool(test.said) for test in tests)} of them failed", flush=True)
    checks = [*tests, *units_on_processes(places, efforts, partial(print, flush=True))]
    failures += [f"{check.what}: {check.said}" for check in checks if check.said]
    page = write_report(places.build, tables, checks, failures)
    print(f"{page}, and the figures' numbers beside it in gpu.json")
    if failures:
        raise CommandFailed(failures)


def measured(
    device: torch.device, devices: int, sizes: Sizes, solutions: Path
) -> tuple[Sequence[Table], list[str]]:
    """Tables of all that is measured, and a sentence for each subject that could not be."""
    failures: list[str] = []
    tables = []
    for name, measure in _subjects(device, devices, sizes, solutions):
        began = time.perf_counter()
        try:
            tables.append(measure())
        except Exception as error:
            # Of any kind, such as too little memory: the other subjects are measured all the same.
            failures.append(f"{name} was not measured: {type(error).__name__}: {error}")
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return tables, failures


def _subjects(
    device: torch.device, devices: int, sizes: Sizes, solutions: Path
) -> Iterator[tuple[str, Callable[[], Table]]]:
    yield "steps", partial(computing.steps, device, sizes)
    yield "peaks", partial(memory.peaks, device, sizes)
    yield "offload", partial(memory.offload, device, sizes, solutions)
    yield "loader", partial(loading.epochs, device, sizes)
    yield "scaling", partial(parallel.scaling, devices, sizes)
