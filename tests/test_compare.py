"""Comparisons trust nothing of what an answer gave: not its type, its size, nor that it is a number."""

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist

from graders.grading.answer import AnswerFailed
from graders.grading.compare import (
    all_close,
    as_float,
    close,
    counted,
    equal,
    first_failure,
    near,
    same,
    side_by_side,
)
from graders.grading.exercise import Finding
from graders.grading.kinds import Kind
from graders.grading.registry import exercises
from graders.grading.rng import Rng
from graders.grading.run import grade
from graders.student.kernel_answer import kernel_answer
from graders.units.unit_07.cases import Setting, lacking

ALIKE: list[tuple[Any, Any]] = [
    ([True], [1]),
    ([1.0, 2], [1, 2]),
    ((1, [2, (3.0,)]), (1, [2, (3,)])),
    ({"rank": True}, {"rank": 1}),
    ([torch.ones(2)], [torch.ones(2, dtype=torch.float64)]),
    (torch.ones(1, 2), torch.ones(2)),
    ([1, 2], (1, 2)),
    ([1], [1, 1]),
    (b"a", "a"),
]


@pytest.mark.parametrize(("seen", "expected"), ALIKE, ids=lambda value: repr(value)[:30])
def test_what_only_looks_alike_is_not_equal(seen: Any, expected: Any) -> None:
    # Invariant: types count at every depth; Python itself finds [True] == [1].
    assert not same(seen, expected)
    assert not equal(seen, expected, "it").passed
    assert same(expected, expected)


STRANGE = [
    *(10**400, -(10**400), 10**4000, math.nan, math.inf, -math.inf, True, None, "1", 1j),
    *([1.0], torch.tensor(1.0), torch.tensor(10**18), {}, b"1"),
]


@pytest.mark.parametrize("seen", STRANGE, ids=lambda value: repr(value)[:12])
@pytest.mark.parametrize("expected", [0.0, 1.0, 1e300])
def test_no_answer_stops_a_comparison(seen: Any, expected: float) -> None:
    # Invariant: whatever an answer gave for a number is compared, fails, and is shown in a sentence.
    for finding in (
        near(seen, expected, "the loss"),
        equal([seen], [expected], "the losses"),
        close(seen, torch.tensor(expected + 2), "the loss"),
    ):
        assert not finding.passed
        assert len(finding.seen) < 400


def test_what_a_wrong_tensor_has_in_common_with_the_right_one_is_told() -> None:
    # A sum in place of a mean, parts in another order, another dtype; all else has no name.
    right = torch.tensor([1.0, -2.0, 4.0])
    scaled, turned = close(4 * right, right, "it"), close(right.roll(1), right, "it")
    assert (scaled.kind, turned.kind) == (Kind.SCALED, Kind.REORDERED)
    assert "4 times what it should be" in scaled.seen
    assert close(right.double(), right, "it").kind is Kind.OTHER_SHAPE
    for wrong in (right + 1, 0 * right, right * math.nan, right * torch.tensor([1.0, 1.0, math.inf])):
        assert close(wrong, right, "it").kind is Kind.OTHER
    assert close(right * (1 + 2e-5), right, "it").kind is Kind.OTHER
    assert close(torch.tensor([4.0]), torch.tensor([1.0]), "it").kind is Kind.OTHER


def test_a_sum_that_lacks_a_rank_is_a_kind_of_failure() -> None:
    # What is missing is told by its rank, where all numbers have it in them; a part that all lack is no sum.
    setting = Setting(3, length=2)
    right = torch.tensor([321.0, 142.0])
    assert lacking(setting, torch.tensor([301.0, 102.0]), right) == [1]
    assert lacking(setting, torch.tensor([320.0, 142.0]), right) == [0]
    for whole in (right, right + 100):
        assert lacking(setting, whole, right) == []
    assert lacking(setting, torch.zeros(2), torch.tensor([3.0, 1.0])) == []

    def all_but_the_last(x: torch.Tensor) -> torch.Tensor:
        x *= dist.get_rank() < dist.get_world_size() - 1
        dist.all_reduce(x)
        return x

    exercise = exercises("07_collectives")["ring_all_reduce"]
    result = grade(exercise, kernel_answer(all_but_the_last, exercise.name), Rng(1))
    assert result.kind is Kind.LACKS_A_RANK, result.criteria[0].seen


def test_numbers_as_floats() -> None:
    assert [as_float(each) for each in (3, 2.5, 10**400, -(10**400))] == [3, 2.5, math.inf, -math.inf]
    assert all(math.isnan(as_float(each)) for each in (True, "3", None, torch.tensor(3)))


def test_the_first_failure_is_told_and_nothing_after_it_asked_for() -> None:
    def findings() -> Any:
        yield Finding(True, "one")
        yield Finding(False, "two")
        raise AssertionError("asked for more")

    assert first_failure(findings()) == Finding(False, "two")
    right = [Finding(True, "one"), Finding(True, "two")]
    assert first_failure(right) == right[0]
    assert first_failure(right, "all") == Finding(True, "all")


def test_nothing_to_look_at_is_not_right() -> None:
    # Invariant: a reply without parts earns nothing.
    assert not first_failure([], "all").passed
    with pytest.raises(AnswerFailed, match="has 0 parts, not 2"):
        side_by_side([], [1, 2])


def test_counted_things_have_their_plural() -> None:
    told = [counted(1, "batch"), counted(2, "micro-batch"), counted(0, "rank"), counted(1200, "node")]
    assert told == ["1 batch", "2 micro-batches", "0 ranks", "1,200 nodes"]


def test_many_tensors_are_compared_as_one_by_one() -> None:
    # Invariant: of many, the first that is wrong is told as it would be alone, whatever is wrong with it.
    rng = Rng()
    expected = [rng.normal(3), rng.normal(2, 2), rng.normal()]
    names = ["a", "b", "c"]
    near_enough = [each * (1 + 1e-6) for each in expected]
    assert all_close(near_enough, expected, names, 1e-5, 1e-6) == close(near_enough[0], expected[0], "a")
    wrong: list[Any] = [None, 2 * expected[1], expected[1].double(), expected[1][:1], expected[1] * math.nan]
    for each in wrong:
        told = all_close([expected[0], each, None], expected, names, 1e-5, 1e-6)
        assert told == close(each, expected[1], "b")
        assert not told.passed
