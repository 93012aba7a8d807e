"""Stepping through a collective: who contributed to what, after each step."""

import pytest
import torch
import torch.distributed as dist

from course_lib.timeline.steps import steps_of
from course_lib.widgets import step_figure, step_through, steps_figure


def ring_pass(x):
    """An all-gather round the ring, straight into x."""
    size, rank = dist.get_world_size(), dist.get_rank()
    chunks = torch.tensor_split(x, size)
    for step in range(size - 1):
        sending = dist.isend(chunks[(rank - step) % size], (rank + 1) % size)
        dist.recv(chunks[(rank - step - 1) % size], (rank - 1) % size)
        sending.wait()


def pass_and_add(x):
    """Everyone's whole tensor to the next rank, which adds it, twice."""
    for _ in range(2):
        arriving = torch.empty_like(x)
        sending = dist.isend(x.clone(), (dist.get_rank() + 1) % dist.get_world_size())
        dist.recv(arriving, (dist.get_rank() - 1) % dist.get_world_size())
        sending.wait()
        x += arriving


def contributors(step, rank):
    return [{source for source, count in enumerate(chunk) if count} for chunk in step.held[rank]]


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_after_step_k_a_rank_has_the_chunks_of_the_k_ranks_before_it(ranks):
    # Chunk c begins at rank c and goes one rank further in each step.
    steps = steps_of(ring_pass, ranks=ranks)
    assert len(steps.steps) == ranks
    for number, step in enumerate(steps.steps):
        assert len(step.messages) == (ranks if number else 0)
        for rank in range(ranks):
            arrived = {(rank - back) % ranks for back in range(number + 1)}
            expected = [{chunk} if chunk in arrived else {rank} for chunk in range(ranks)]
            assert contributors(step, rank) == expected


def test_what_is_added_twice_counts_twice():
    # After the second pass the next but one has arrived once, the neighbour twice.
    steps = steps_of(pass_and_add, ranks=4, chunks=1)
    assert steps.steps[1].held[0] == ((1, 0, 0, 1),)
    assert steps.steps[2].held[0] == ((1, 0, 1, 2),)


def test_a_change_is_known_with_its_step():
    steps = steps_of(ring_pass, ranks=3)
    assert steps.changed(1, rank=0, chunk=2)
    assert not steps.changed(1, rank=0, chunk=1)
    assert steps.changed(2, rank=0, chunk=1)
    assert not steps.changed(0, rank=0, chunk=0)


def test_figures_say_in_words_what_they_show():
    steps = steps_of(ring_pass, ranks=3)
    assert "ring_pass on 3 ranks in 2 steps" in steps_figure(steps).alt
    assert "Messages: 2 to 0, 0 to 1, 1 to 2" in step_figure(steps, 1).alt


def test_what_cannot_be_stepped_through_is_said():
    with pytest.raises(ValueError, match="1 to 8 ranks; got 9"):
        steps_of(ring_pass, ranks=9)
    with pytest.raises(ValueError, match="sends no message"):
        step_through(steps_of(ring_pass, ranks=1))
