"""A pipeline's schedules: what is refused, when things happen, and that a stage does what it is told."""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from course_lib import launch
from course_lib.training.pipeline import (
    Backward,
    BackwardInput,
    BackwardWeight,
    BadSchedule,
    Costs,
    Forward,
    Recompute,
    Stage,
    check_schedule,
    cost,
)
from course_lib.training.pipeline.drawing import schedule_figure

STEP = [Forward(0), Backward(0)]
HALVES = [Forward(0), BackwardInput(0), BackwardWeight(0)]


@pytest.mark.parametrize(
    ("schedule", "micro_batches", "words"),
    [
        ([STEP, [Forward(0)]], 1, r"Stage 1 of 2 never does Backward\(0\)"),
        ([STEP], 2, r"never does Forward\(1\)"),
        ([[*STEP, Forward(0)]], 1, r"does Forward\(0\) twice, the second time as its action 2"),
        ([[Backward(0), Forward(0)]], 1, r"does Backward\(0\) before Forward\(0\)"),
        ([[Forward(0), BackwardWeight(0), BackwardInput(0)]], 1, r"BackwardWeight\(0\) before BackwardInput"),
        ([[*STEP, BackwardInput(0)]], 1, r"does BackwardInput\(0\) though it has done Backward\(0\)"),
        ([HALVES[:2]], 1, r"does BackwardInput\(0\), but never BackwardWeight\(0\)"),
        ([[*STEP, Recompute(0)]], 1, "when nobody needs it any more"),
        ([[Recompute(0), *STEP]], 1, r"does Recompute\(0\) before Forward\(0\)"),
        (
            [[Forward(0, chunk=1)]],
            1,
            r"lists Forward\(0, chunk=1\), but there are 1 micro-batches and 1 chunk,",
        ),
        ([["F0"]], 1, "lists 'F0', which is none of Forward, Backward"),
    ],
)
def test_a_schedule_that_cannot_run_is_refused_with_a_reason(schedule, micro_batches, words):
    with pytest.raises(BadSchedule, match=words):
        check_schedule(schedule, micro_batches)


def test_stages_that_wait_in_a_circle_are_named():
    impatient = [Forward(0), Backward(0), Forward(1), Backward(1)]
    patient = [Forward(0), Forward(1), Backward(0), Backward(1)]
    with pytest.raises(BadSchedule, match=r"stage 0, at Backward\(0\), waits for Backward\(0\) of stage 1"):
        check_schedule([impatient, patient], 2)
    assert len(check_schedule([patient, impatient], 2)) == 8


def test_an_action_begins_when_its_stage_is_free_and_what_it_needs_is_there():
    first = [Forward(0), Forward(1), Backward(0), Backward(1)]
    last = [Forward(0), BackwardInput(0), BackwardWeight(0), Forward(1), Backward(1)]
    costs = Costs(forward=[1.0, 2.0], backward=[3.0, 4.0], input_share=[0.5, 0.25], message=0.5)
    timing = cost([first, last], 2, costs)
    assert [(each.begin, each.end) for each in timing.stages[1]] == [
        (1.5, 3.5),
        (3.5, 4.5),
        (4.5, 7.5),
        (7.5, 9.5),
        (9.5, 13.5),
    ]
    assert [each.begin for each in timing.stages[0]] == [0.0, 1.0, 5.0, 14.0]
    assert timing.seconds == 17
    assert timing.bubble == pytest.approx(1 - (8 + 12) / (2 * 17))
    assert timing.peaks == [2, 1]


def test_what_is_recomputed_leaves_its_input_only():
    row = [Forward(0), Forward(1), Recompute(1), Backward(1), Recompute(0), Backward(0)]
    timing = cost([row], 2, Costs(activations=8.0, inputs=1.0))
    assert timing.memory(0) == [(0.0, 8.0), (1.0, 9.0), (2.0, 9.0), (5.0, 8.0), (8.0, 0.0)]


def test_a_figure_tells_in_words_what_it_shows():
    drawing = schedule_figure(cost([STEP, STEP], 1), "One batch")
    assert "One batch on 2 stages as boxes in time: 6 long, of which 50% is a bubble" in drawing.alt
    assert "Stage 1: Forward(0) at 1, Backward(0) at 2." in drawing.alt


# --- Doing it


class Turned(nn.Module):
    """A piece whose output is a view."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


def pieces() -> list[nn.Module]:
    """Four pieces between tensors of different shapes; the first is frozen, one returns a view."""
    torch.manual_seed(0)
    frozen = nn.Sequential(nn.Flatten(), nn.Linear(6, 12)).requires_grad_(False)
    return [
        frozen,
        nn.Sequential(nn.Linear(12, 12), nn.Unflatten(1, (3, 4)), Turned()),
        nn.Sequential(nn.Linear(3, 5, bias=False), nn.Tanh()),
        nn.Sequential(nn.Flatten(), nn.Linear(20, 2, dtype=torch.float32)),
    ]


def batch() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(1)
    return [torch.randn(size, 2, 3) for size in (3, 1, 2)], [torch.randn(size, 2) for size in (3, 1, 2)]


def whole_step() -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """Loss and gradients of the whole model on the whole batch."""
    model, (inputs, targets) = nn.Sequential(*pieces()), batch()
    loss = mse_loss(model(torch.cat(inputs)), torch.cat(targets))
    loss.backward()
    return loss.detach(), [parameter.grad for parameter in model.parameters()]


def forward_then_backward(kinds, chunks):
    """All forwards, then for each micro-batch and chunk these kinds of actions."""
    there = [Forward(number, chunk) for chunk in range(chunks) for number in range(3)]
    back = [(number, chunk) for chunk in reversed(range(chunks)) for number in range(3)]
    return there + [kind(*where) for where in back for kind in kinds]


def stage_step(kinds, chunks):
    """One step of this rank: loss, and the gradients of its pieces."""
    from torch import distributed as dist

    mine = pieces()[dist.get_rank() :: dist.get_world_size()]
    loss = Stage(mine, mse_loss).step(forward_then_backward(kinds, chunks), *batch())
    return loss, [[parameter.grad for parameter in piece.parameters()] for piece in mine]


KINDS = [(Backward,), (Recompute, Backward), (Recompute, BackwardInput, BackwardWeight)]
"""What becomes of a micro-batch after its forward."""


def stage_steps(chunks):
    """`stage_step` for each of KINDS."""
    return [stage_step(kinds, chunks) for kinds in KINDS]


@pytest.mark.parametrize("on", ["simulated", "processes"])
def test_gradients_are_those_of_the_whole_model(on):
    # Invariant: whatever is recomputed or halved, with several chunks between the same two ranks, and
    # micro-batches of three sizes, loss and gradients are those of the batch.
    loss, gradients = whole_step()
    for first, last in zip(*launch(stage_steps, 2, ranks=2, on=on).results, strict=True):
        assert first[0] is None
        torch.testing.assert_close(last[0], loss)
        in_order = [piece for chunk in zip(first[1], last[1], strict=True) for piece in chunk]
        torch.testing.assert_close([gradient for piece in in_order for gradient in piece], gradients)


def test_one_stage_sends_nothing():
    run = launch(stage_step, (Backward,), 4, ranks=1)
    assert not run.traffic.messages
    torch.testing.assert_close(
        [gradient for piece in run.results[0][1] for gradient in piece], whole_step()[1]
    )


def dropped_out(kinds):
    """Gradients of a stage that drops out, with the random numbers of a seed."""
    torch.manual_seed(3)
    piece = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 1))
    inputs = [torch.ones(2, 4), torch.ones(2, 4)]
    actions = [Forward(0), Forward(1), *(kind(number) for number in (0, 1) for kind in kinds)]
    Stage([piece], mse_loss).step(actions, inputs, [torch.ones(2, 1)] * 2)
    return [parameter.grad for parameter in piece.parameters()]


def test_a_forward_that_is_done_again_drops_out_the_same():
    kept, again = (
        launch(dropped_out, kinds, ranks=1).results[0] for kinds in ((Backward,), (Recompute, Backward))
    )
    torch.testing.assert_close(again, kept, rtol=0, atol=0)
