"""Unit 04 beside the real Horovod: the solution's optimizer trains as its own does; what a process under
horovodrun replies stops no grader, and a run that is not the answer's fault blocks.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from course_lib import launch
from course_lib.beside import missing
from course_lib.runtime.communication.horovod_timeline import load_trace
from graders.grading.exercise import Verdict
from graders.grading.registry import load_all
from graders.grading.rng import Rng
from graders.grading.run import grade
from graders.protocol.proxy import RemoteAnswer
from graders.student.kernel_answer import kernel_answer
from graders.units.unit_04 import horovodrun, six_steps
from tests.answers import right_answers, solved
from tests.test_forged_replies import Forger

pytestmark = [
    pytest.mark.xdist_group("horovodrun"),
    pytest.mark.skipif(bool(missing("horovod")), reason=missing("horovod") or "it is there"),
    pytest.mark.timeout(300),
]

UNIT = "04_horovod"
FORGERIES = 60


def train(wrap: Callable[..., Any], rank: int) -> Tensor:
    """This rank's weights after 20 steps, end to end. wrap: of an optimizer, named parameters and passes."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    model[2].bias.requires_grad_(False)
    plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    optimizer = wrap(plain, model.named_parameters(), 2)
    batches = torch.Generator().manual_seed(100 + rank)
    for _ in range(20):
        optimizer.zero_grad()
        for _ in range(2):
            inputs = torch.randn(6, 8, generator=batches)
            labels = torch.randint(0, 4, (6,), generator=batches)
            (functional.cross_entropy(model(inputs), labels) / 2).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _of_the_solution(optimizer: Any) -> Tensor:
    """With an optimizer of the workbook."""
    return train(optimizer, dist.get_rank())


def _of_horovod() -> Tensor:
    """With Horovod's own."""
    import horovod.torch as hvd

    def wrap(optimizer: Any, named_parameters: Any, passes: int) -> Any:
        return hvd.DistributedOptimizer(optimizer, named_parameters, backward_passes_per_step=passes)

    return train(wrap, hvd.rank())


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_solution_trains_as_horovod_does(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Invariant: after 20 steps with two passes each, weights are those of horovod.torch.DistributedOptimizer.
    # And of the timeline that Horovod writes meanwhile, two ways to compute the overlap say the same.
    monkeypatch.setenv("HOROVOD_TIMELINE", str(tmp_path / "timeline"))
    real = launch(_of_horovod, ranks=ranks, on="horovod", timeout=120).results[0]
    optimizer = solved(UNIT)["DistributedOptimizer"]
    for weights in launch(_of_the_solution, optimizer, ranks=ranks, on="processes", timeout=120).results:
        torch.testing.assert_close(weights, real, rtol=0, atol=1e-6)

    trace = load_trace(tmp_path / "timeline")
    ways = [proof.answer for proof in right_answers(UNIT) if proof.exercise == "overlap_fraction"]
    fractions = [way(trace) for way in (solved(UNIT)["overlap_fraction"], *ways)]
    assert 0 <= fractions[0] <= 1
    assert fractions == pytest.approx([fractions[0]] * len(fractions))


class Recorded(Forger):
    """A forger that has each request carried out once: with the same inputs the replies are the same."""

    replies: ClassVar[dict[bytes, bytes]] = {}

    def performed(self, request: bytes) -> bytes:
        if request not in self.replies:
            self.replies[request] = super().performed(request)
        return self.replies[request]


def test_no_forged_reply_of_horovodrun_stops_the_grader() -> None:
    # Invariant: every criterion gets a verdict, and none says that the grader itself stopped.
    exercise = load_all()[UNIT]["six_steps"]
    for seed in range(FORGERIES):
        forger = Recorded(solved(UNIT)["six_steps"], random.Random(seed))
        result = grade(exercise, RemoteAnswer(exercise.name, "", forger), Rng(1))
        assert not result.mistake, "\n".join([*forger.made, result.mistake])
        assert len(result.criteria) == len(exercise.rubric)


@pytest.mark.parametrize(
    ("launcher", "said"),
    [
        ("raise SystemExit('no port is left')", "no port is left"),
        (
            "import horovod.runner.gloo_run as run; made = run.create_run_env_vars;"
            "run.create_run_env_vars = lambda *given, **more: "
            "{**made(*given, **more), 'HOROVOD_GLOO_RENDEZVOUS_PORT': '1'};"
            f"import runpy; runpy.run_path({str(horovodrun.LAUNCHER)!r}, run_name='__main__')",
            "found no way to each other",
        ),
    ],
)
def test_a_launcher_that_fails_blocks(
    launcher: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Invariant: nothing counts against an answer whose ranks were not started, or could not connect.
    (tmp_path / "launcher.py").write_text(launcher)
    monkeypatch.setattr(horovodrun, "LAUNCHER", tmp_path / "launcher.py")
    answer = kernel_answer(solved(UNIT)["six_steps"], "six_steps")
    result = grade(load_all()[UNIT]["six_steps"], answer, Rng(1))
    assert {each.verdict for each in result.criteria} == {Verdict.BLOCKED}
    assert said in result.criteria[0].seen


def test_where_horovod_is_absent_the_script_is_blocked_and_the_reason_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(six_steps, "missing", lambda name: f"{name} is not installed: make {name}.")
    answer = kernel_answer(solved(UNIT)["six_steps"], "six_steps")
    result = grade(load_all()[UNIT]["six_steps"], answer, Rng(1))
    assert {each.verdict for each in result.criteria} == {Verdict.BLOCKED}
    assert "horovod is not installed: make horovod." in result.criteria[0].seen
