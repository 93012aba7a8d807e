"""The README's first look is what the workbook does."""

import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib import Deadlock
from course_lib.runtime.communication.events import Kind
from docs.first_look import FIGURE, drawn, programs
from graders.grading.registry import exercises
from graders.grading.run import grade
from graders.student.kernel_answer import kernel_answer

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_figure_is_what_its_text_says():
    # Invariant: three sums start while backward computes, in the second step; times are those of the text.
    computing, after = re.search(r"computes for ([\d.]+) ms.* ends ([\d.]+) ms after", README).groups()
    assert f"({FIGURE.parent.name}/{FIGURE.name})" in README
    *lines, last = programs()[0].strip().splitlines()
    assert last == "run.timeline(start=0.011)"
    run = drawn("\n".join([*lines, "run"]))
    step = [event for event in run.events if event.rank == 2 and event.end > 0.011]
    computed = [event for event in step if event.kind is Kind.COMPUTE and event.end - event.start > 1e-5]
    ended = max(event.end for event in computed)
    sums = [event for event in step if event.op == "all_reduce" and event.start > computed[0].start]
    assert len(sums) == 3
    assert sums[0].start < sums[1].start < sums[2].start <= ended
    assert f"{1e3 * (ended - computed[0].start):.1f}" == computing
    assert f"{1e3 * (sums[-1].end - ended):.1f}" == after


def test_the_mistake_is_told_in_these_words():
    with pytest.raises(Deadlock) as told:
        drawn("import torch\nfrom course_lib import launch\n" + programs()[1])
    block = README.split("Deadlock: ")[1].split("```")[0].splitlines()
    assert [line for line in block if line != "..."] != []
    assert all(line in str(told.value).splitlines() for line in block if line != "...")


def average_one_by_one(model: nn.Module) -> None:
    """The mean of each gradient, by a call of its own."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def test_the_verdict_is_that_of_the_grader():
    result = grade(
        exercises("02_data_parallel")["average_gradients"],
        kernel_answer(average_one_by_one, "average_gradients"),
    )
    block = README.split("average_gradients: ")[1].split("```")[0]
    assert block.startswith(f"{result.points} of {result.exercise.points} points")
    (failed,) = (each for each in result.criteria if each.verdict == "failed")
    told = re.sub(r"[│\s]+", " ", block)
    assert f"{failed.criterion.name} ✘ failed" in told
    assert failed.seen.split(":")[-1].split(";")[0].strip() in told
    assert failed.criterion.hint[:60] in told
