"""What libraries do by themselves earns all points but those of rows that ask for more, which say so.

The answers are in `tests/field`: PyTorch's own functions, and those of libraries beside the workbook.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import functional

from course_lib import launch
from course_lib.beside import missing
from graders.grading.registry import exercises
from tests.field import answers, told, told_beside
from tests.field.answers import FieldAnswer
from tests.field.meshes import mesh_of
from tests.newer_torch import SINCE_2_8


def marks(given: FieldAnswer) -> Sequence[pytest.MarkDecorator]:
    """A library beside the workbook grades all its answers in one process, for one worker."""
    if given.library == "fully_shard":
        return (SINCE_2_8,)
    if not given.beside:
        return ()
    sentence = missing(given.beside)
    return (
        pytest.mark.xdist_group(f"field {given.beside}"),
        pytest.mark.skipif(bool(sentence), reason=sentence or "it is there"),
    )


@pytest.mark.parametrize("given", [pytest.param(each, id=each.name, marks=marks(each)) for each in answers()])
def test_what_the_field_uses_earns_all_but_what_asks_for_more(given: FieldAnswer) -> None:
    exercise = exercises(given.unit)[given.exercise]
    seen = told_beside(given.beside)[given.name] if given.beside else told(given)
    failed = {row for row, (verdict, _) in seen.items() if verdict == "failed"}
    assert failed == given.lacks, seen
    assert exercise.rubric[0].name not in failed
    silent = [row.name for row in exercise.rubric if row.name in failed and given.library not in row.hint]
    assert silent == []


def strip_by_dtensor(image: Tensor, weight: Tensor) -> Tensor:
    """This rank's rows of a convolution by DTensor."""
    mesh = mesh_of(None)
    strip = DTensor.from_local(image.chunk(dist.get_world_size(), 2)[dist.get_rank()], mesh, [Shard(2)])
    whole = [
        DTensor.from_local(each, mesh, [Replicate()], run_check=False) for each in (weight, torch.zeros(3))
    ]
    result: Any = functional.conv2d(strip, *whole, padding=1)
    return result.to_local()  # type: ignore[no-any-return]


@pytest.mark.parametrize("on", ["simulated", "processes"])
def test_dtensors_convolution_of_strips_is_wrong_where_they_meet(on: str) -> None:
    # Why DTensor is no answer to spatial_conv2d: it takes the rows beyond a strip for zeros, on processes as
    # on simulated ranks. PyTorch 2.6 fetches neighbours along the last dimension only; 2.13 nowhere, and
    # calls the strips that it returns replicas. Where this fails, PyTorch has mended it: see `tests/field`.
    generator = torch.Generator().manual_seed(1)
    image, weight = (torch.randn(*shape, generator=generator) for shape in ((1, 2, 8, 5), (3, 2, 3, 3)))
    upper, lower = functional.conv2d(image, weight, padding=1).chunk(2, 2)
    seen = launch(strip_by_dtensor, image, weight, ranks=2, on=on).results
    assert (seen[0] - upper)[:, :, -1].abs().max() > 0.01
    assert (seen[1] - lower)[:, :, 0].abs().max() > 0.01
