"""The simulator's times against those of SimGrid's SMPI on the same star of links."""

import pytest
import torch

from benchmarks.programs import send_cycle
from benchmarks.smpi import EAGER_LIMIT, Compared, cases, compare, smpi_missing, smpirun
from course_lib import Cluster, Deadlock, launch

CASES = {case.name: case for case in cases()}
pytestmark = pytest.mark.skipif(bool(smpi_missing()), reason=smpi_missing())


def compared(name: str, nbytes: int) -> Compared:
    return compare(CASES[name], nbytes, ranks=8)


@pytest.mark.parametrize("nbytes", [65_536, 4_194_304])
@pytest.mark.parametrize(
    "name", ["ring", "recursive doubling", "Rabenseifner", "incast", "pairs through one card"]
)
def test_both_predict_the_same_time(name: str, nbytes: int) -> None:
    assert abs(compared(name, nbytes).deviation) <= 0.001


def test_an_incast_shares_the_link_of_its_receiver() -> None:
    # alpha + 8 n beta, for both.
    seen = compared("incast", 4_194_304)
    expected = 10e-6 + 8 * 4_194_304 / 12.5e9
    assert [seen.ours, seen.theirs] == pytest.approx([expected] * 2, rel=0.001)


def test_taking_turns_hides_latency_that_fair_sharing_does_not() -> None:
    # Ten times four messages through one card: here only the last latency shows, there all ten.
    seen = compared("the same ten times", 4_194_304)
    transfers = 40 * 4_194_304 / 12.5e9
    assert seen.ours == pytest.approx(transfers + 10e-6, rel=0.001)
    assert seen.theirs == pytest.approx(transfers + 100e-6, rel=0.001)


def test_a_cycle_of_sends_deadlocks_above_the_eager_limit_in_both() -> None:
    cluster = Cluster(nodes=4, eager_limit=EAGER_LIMIT)
    below, above = (torch.zeros(size, dtype=torch.uint8) for size in (EAGER_LIMIT, EAGER_LIMIT + 1))
    assert len(smpirun("cycle", below.numel(), 4).stdout.split()) == 4
    launch(send_cycle, below, cluster=cluster)

    theirs = smpirun("cycle", above.numel(), 4)
    assert not theirs.stdout
    with pytest.raises(Deadlock) as caught:
        launch(send_cycle, above, cluster=cluster)
    # Ours names peers, tags and lines; theirs none of them.
    report = caught.value.report
    assert caught.value.cycle == (0, 1, 2, 3)
    assert "rank 0: send(uint8[65536]) to rank 1, tag 5" in report
    assert "programs.py" in report
    assert "dist.send(x, (rank + 1) % ranks, tag=5)" in report
    assert "Deadlock" in theirs.stderr
    assert "tag" not in theirs.stderr
