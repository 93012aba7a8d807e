"""Stepping through a collective: who contributed to what, after each step."""

import pytest
import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.notebook.collective_steps import steps_of
from course_lib.notebook.log_steps import steps_of_log
from course_lib.notebook.stepping import step_figure, step_through, steps_figure


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


def sum_in_clones(x):
    """A ring all-reduce whose chunks are tensors of their own, copied into x at the end."""
    size, rank = dist.get_world_size(), dist.get_rank()
    chunks = [chunk.clone() for chunk in torch.tensor_split(x, size)]
    for step in range(2 * size - 2):
        sending = dist.isend(chunks[(rank - step) % size], (rank + 1) % size)
        arriving = torch.empty_like(chunks[(rank - step - 1) % size])
        dist.recv(arriving, (rank - 1) % size)
        sending.wait()
        adds = step < size - 1
        chunks[(rank - step - 1) % size] = arriving + (chunks[(rank - step - 1) % size] if adds else 0)
    x.copy_(torch.cat(chunks))


def sum_in_two_calls(x):
    """The same out of two functions: one reduces a copy and returns a chunk, the other gathers into x."""
    size, rank = dist.get_world_size(), dist.get_rank()
    copy = x.clone()
    chunks = torch.tensor_split(copy, size)
    for step in range(size - 1):
        arriving = torch.empty_like(chunks[(rank - step - 1) % size])
        sending = dist.isend(chunks[(rank - step) % size], (rank + 1) % size)
        dist.recv(arriving, (rank - 1) % size)
        sending.wait()
        chunks[(rank - step - 1) % size].add_(arriving)
    x[(rank + 1) % size] = chunks[(rank + 1) % size].clone()
    chunks = torch.tensor_split(x.clone(), size)
    for step in range(size - 1):
        sending = dist.isend(chunks[(rank + 1 - step) % size], (rank + 1) % size)
        dist.recv(chunks[(rank - step) % size], (rank - 1) % size)
        sending.wait()
    x.copy_(torch.cat(chunks))


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


@pytest.mark.parametrize("collective", [sum_in_clones, sum_in_two_calls])
@pytest.mark.parametrize("ranks", [2, 4, 5])
def test_where_a_function_keeps_its_chunks_does_not_matter(collective, ranks):
    # Chunk c comes to rank c + k in step k and has the parts of ranks c to c + k then; from step p on its sum
    # goes round. Nothing that a rank has added up is lost again.
    steps = steps_of(collective, ranks=ranks)
    assert len(steps.steps) == 2 * ranks - 1
    for number, step in enumerate(steps.steps):
        for rank in range(ranks):
            for chunk, found in enumerate(contributors(step, rank)):
                way = (rank - chunk) % ranks
                parts = way if way <= number else 0
                if number >= (ranks - 1 if way == ranks - 1 else ranks + way):
                    parts = ranks - 1
                assert found == {(rank - back) % ranks for back in range(parts + 1)}


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


# --- From an event log


@pytest.mark.parametrize("on", ["simulated", "processes"])
def test_a_log_shows_who_can_have_heard_of_whom(on):
    # The ring again, now from what was logged: in step k everyone hears of the k-th rank before it.
    run = launch(ring_pass, torch.zeros(8), ranks=4, on=on)
    steps = steps_of_log(run)
    assert len(steps.steps) == 4
    for number, step in enumerate(steps.steps):
        assert len(step.messages) == (4 if number else 0)
        for rank in range(4):
            assert contributors(step, rank) == [{(rank - back) % 4 for back in range(number + 1)}]
    assert "4 messages of 8 bytes" in step_figure(steps, 1).axes[1].get_title()
    assert steps_figure(steps)


def test_a_blocking_send_takes_its_sender_a_step_further():
    def scatter():
        x = torch.ones(2)
        if dist.get_rank() == 0:
            for other in (1, 2, 3):
                dist.send(x, other)
        else:
            dist.recv(x, 0)

    steps = steps_of_log(launch(scatter, ranks=4))
    sent = [[(message.source, message.target) for message in step.messages] for step in steps.steps]
    assert sent == [[], [(0, 1)], [(0, 2)], [(0, 3)]]


def test_collectives_of_a_log_spread_what_they_carry():
    def f():
        x = torch.ones(2)
        dist.reduce(x, 1)
        dist.barrier()
        dist.broadcast(x, 1)

    start, reduced, spread = steps_of_log(launch(f, ranks=3)).steps
    assert [contributors(start, rank) for rank in range(3)] == [[{0}], [{1}], [{2}]]
    assert [contributors(reduced, rank) for rank in range(3)] == [[{0}], [{0, 1, 2}], [{2}]]
    assert [contributors(spread, rank) for rank in range(3)] == [[{0, 1, 2}]] * 3


def test_a_log_of_too_many_ranks_is_refused():
    with pytest.raises(ValueError, match="the run has 9"):
        steps_of_log(launch(dist.barrier, ranks=9))
