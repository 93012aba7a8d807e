"""Unit 04 beside the real Horovod: the solution's optimizer trains as its own does, and what a process under
horovodrun replies stops no grader.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import launch
from course_lib.beside import missing
from graders.grading.registry import load_all
from graders.grading.rng import Rng
from graders.grading.run import grade
from graders.protocol.proxy import RemoteAnswer
from tests.answers import right_answers, solved
from tests.horovod_training import train
from tests.test_forged_replies import Forger

pytestmark = [
    pytest.mark.xdist_group("horovodrun"),
    pytest.mark.skipif(bool(missing("horovod")), reason=missing("horovod") or "it is there"),
    pytest.mark.timeout(300),
]

UNIT = "04_horovod"
FORGERIES = 60


def _of_the_solution(optimizer: Any) -> Tensor:
    """This rank's weights with an optimizer of the workbook."""
    return train(optimizer, dist.get_rank())


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_solution_trains_as_horovod_does(ranks: int, tmp_path: Path) -> None:
    # Invariant: after 20 steps with two passes each, weights are those of horovod.torch.DistributedOptimizer.
    # And of the timeline that Horovod writes meanwhile, two ways to compute the overlap say the same.
    program = Path(__file__).with_name("horovod_training.py")
    options = ["-np", str(ranks), "--gloo", "--network-interface", "lo", "-H", f"127.0.0.1:{ranks}"]
    command = [sys.executable, "-m", "horovod.runner.launch", *options, sys.executable, str(program)]
    done = subprocess.run(
        [*command, str(tmp_path / "weights")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HOROVOD_TIMELINE": str(tmp_path / "timeline")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    real = torch.load(tmp_path / "weights")

    optimizer = solved(UNIT)["DistributedOptimizer"]
    run = launch(_of_the_solution, optimizer, ranks=ranks, on="processes", timeout=120)
    for weights in run.results:
        torch.testing.assert_close(weights, real, rtol=0, atol=1e-6)

    trace = json.loads((tmp_path / "timeline").read_text())
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
