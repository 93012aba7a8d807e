"""Operators placed on devices: the tasks of a step, and those that a change of the plan touches."""

import random

import pytest

from course_lib.planner.placements import Machine, Placeable, PlacedStep, Places, branches, chain_of
from course_lib.planner.profiles import Profile
from course_lib.planner.timelines import Task, Watched

MACHINE = Machine(devices=4, per_node=2, speed=100.0, within=50.0, between=10.0)


def a_fork(parts: int = 4) -> PlacedStep:
    """Two operators that take the first one's output, and one that takes theirs."""
    operators = (
        Placeable("in", 600.0, 80.0, 40.0),
        Placeable("left", 1200.0, 80.0, 0.0, (0,)),
        Placeable("right", 300.0, 40.0, 20.0, (0,)),
        Placeable("out", 600.0, 8.0, 8.0, (1, 2)),
    )
    return PlacedStep(operators, MACHINE, parts)


def drawn(rng: random.Random, step: PlacedStep) -> Places:
    devices = step.machine.devices
    return tuple(tuple(rng.randrange(devices) for _ in range(step.parts)) for _ in step.operators)


@pytest.mark.parametrize("parts", [1, 3, 4])
def test_edges_lead_to_higher_numbers_and_every_task_has_a_device(rng: random.Random, parts: int) -> None:
    step = a_fork(parts)
    tasks = step.tasks(drawn(rng, step))
    assert len(tasks) == len(step.numbers)
    assert all(0 <= first < second < len(tasks) for first, second in step.edges)
    assert all(0 <= task.device < step.devices for task in tasks)


def test_changes_are_all_that_differs_between_two_plans(rng: random.Random) -> None:
    step = a_fork()
    old, new = drawn(rng, step), drawn(rng, step)
    new = (old[0], new[1], *old[2:])
    changed = step.tasks(old)
    for number, task in step.changes(old, new).items():
        changed[number] = task
    assert changed == step.tasks(new)


def test_what_a_task_takes() -> None:
    step = a_fork()
    spread, alone = step.data_parallel(), ((1,) * 4,) * 4
    tasks, numbers = step.tasks(spread), step.numbers
    # A quarter of the batch: a third of its operations forward, the rest backward.
    assert tasks[numbers["forward", 1, 2]] == Task(2, 1.0)
    assert tasks[numbers["backward", 1, 2]] == Task(2, 2.0)
    # Four devices on two nodes: 2 (4 - 1) / 4 times 40 bytes, at the slower bandwidth.
    assert tasks[numbers["all-reduce", 0, 0]].seconds == pytest.approx(6.0)
    assert tasks[numbers["send", 0, 0]].seconds == 0
    assert all(task.device in (1, *range(4, step.devices)) for task in step.tasks(alone))
    apart = (alone[0], (0, 1, 2, 3), *alone[2:])
    sent = step.tasks(apart)
    # 20 bytes from device 1: to itself, within the node, and to the other node.
    took = [sent[numbers["send", 0, part]].seconds for part in range(4)]
    assert took == pytest.approx([0.4, 0.0, 2.0, 2.0])


def test_a_chain_joins_layers_without_weights_to_the_one_before() -> None:
    chain = chain_of(Profile([5, 1, 7, 2], [40, 30, 20, 10], [8, 0, 4, 0]))
    assert [(each.operations, each.output_bytes, each.weight_bytes, each.inputs) for each in chain] == [
        (6, 30, 8, ()),
        (9, 10, 4, (0,)),
    ]


def test_branches_meet_in_the_last_operator() -> None:
    operators = branches(3, depth=2)
    assert [each.inputs for each in operators] == [(), (0,), (), (2,), (), (4,), (1, 3, 5)]


def test_a_watched_list_keeps_what_was_read() -> None:
    watched = Watched(Task(number, 1.0) for number in range(5))
    watched[0] = Task(7, 1.0)
    assert watched.read == set()
    assert watched[-1] == Task(4, 1.0)
    assert watched[1:3] == [Task(1, 1.0), Task(2, 1.0)]
    assert watched.read == {4, 1, 2}
    assert len(list(watched)) == 5
    assert watched.read == set(range(5))
