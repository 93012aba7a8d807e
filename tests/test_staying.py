"""Ranks that stay: variables, groups and clocks last from cell to cell, and they outlive a cell's mistake."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from jupyter_core.utils import run_sync

from course_lib import (
    BadLaunch,
    Cluster,
    CollectiveMismatch,
    Deadlock,
    Link,
    RankFailed,
    TimedOut,
    launch,
    per_rank,
)
from course_lib.cluster.device import Device
from course_lib.notebook.staying import Ranks, ranks
from course_lib.runtime.communication.events import Kind
from course_lib.runtime.simulator.staying import RanksLeftBehind
from course_lib.scratch import scratch_folder
from workbook.run_notebook import OwnSocketsManager

pytestmark = pytest.mark.xdist_group("staying")

BEGIN = "import torch, torch.distributed as dist\nrank = dist.get_rank()\nx = torch.tensor(float(rank))"


@pytest.fixture(params=["simulated", "processes"])
def three(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with ranks(3, on=request.param, timeout=60) as there:
        there.run(BEGIN)
        yield there


def values(there: Ranks, code: str, on: Any = None) -> list[str | None]:
    return [answer.value for answer in there.run(code, on)]


def sums_up(there: Ranks) -> bool:
    """Whether all ranks meet in a collective."""
    code = "import torch, torch.distributed as dist\nt = torch.ones(1)\ndist.all_reduce(t)\nt.item()"
    return values(there, code) == ["3.0"] * 3


def test_what_a_cell_sets_the_next_one_has(three: Ranks) -> None:
    assert values(three, "dist.all_reduce(x)\nx.item()") == ["3.0"] * 3
    assert values(three, "y = x + rank\ny.item()", on=[2, 0]) == ["5.0", "3.0"]
    assert three[2]["y"] == torch.tensor(5.0)
    with pytest.raises(BadLaunch, match=r"Rank 1 has no 'y'; it has .*x"):
        three[1]["y"]
    assert [answer.printed for answer in three.run("print('rank', rank)")] == [
        f"rank {r}\n" for r in range(3)
    ]


def test_a_group_made_in_one_cell_serves_in_the_next(three: Ranks) -> None:
    three.run("pair = dist.new_group([0, 2])")
    three.run("if rank != 1: dist.all_reduce(x, group=pair)")
    assert values(three, "x.item()") == ["2.0", "1.0", "2.0"]


def test_a_model_is_built_in_one_cell_stepped_in_the_next_and_looked_at_in_the_third(three: Ranks) -> None:
    three.run(
        "from torch.nn.parallel import DistributedDataParallel\ntorch.manual_seed(rank)\n"
        "model = DistributedDataParallel(torch.nn.Linear(2, 1))\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)"
    )
    for _ in range(2):
        three.run(
            "optimizer.zero_grad()\nmodel(torch.full((4, 2), x.item())).square().mean().backward()\n"
            "optimizer.step()"
        )
    three.run("weight = model.module.weight.detach()")
    first, *others = [three[rank]["weight"] for rank in range(3)]
    assert all(torch.equal(first, other) for other in others)


def test_values_are_put_and_copied(three: Ranks) -> None:
    given = [1, 2]
    three.put("same", given)
    three.put("own", per_rank([10, 20, 30]))
    three.run("same.append(own)")
    assert values(three, "same") == [f"[1, 2, {own}]" for own in (10, 20, 30)]
    assert given == [1, 2]
    fetched = three[0]["same"]
    fetched.append(0)
    assert values(three, "len(same)") == ["3"] * 3
    with pytest.raises(BadLaunch, match="per_rank has 2 values, and there are 3 ranks"):
        three.put("own", per_rank([1, 2]))


def test_an_error_on_all_ranks_leaves_them_as_they_are(three: Ranks) -> None:
    with pytest.raises(RankFailed, match="division by zero"):
        three.run("z = 1\nprint('here')\n1 / 0")
    assert three.printed == dict.fromkeys(range(3), "here\n")
    assert values(three, "z") == ["1"] * 3
    assert sums_up(three)


MISTAKES = {
    "one fails": ("if rank == 1: 1 / 0\ndist.barrier()", RankFailed, "rank 1 failed with ZeroDivisionError"),
    "deadlock": ("dist.recv(x, (rank + 1) % 3)", Deadlock, "rank 0 waits for rank 1 to send"),
    "mismatch": (
        "dist.all_reduce(torch.ones(2 + rank)) if rank else dist.barrier()",
        CollectiveMismatch,
        "all_reduce",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_ranks_are_there_after_a_mistake(three: Ranks, mistake: str) -> None:
    code, kind, says = MISTAKES[mistake]
    with pytest.raises(kind, match=says) as told:
        three.run(code)
    assert "line 2" in str(told.value), "the cell's own line, the first being its magic's"
    assert sums_up(three)
    assert values(three, "rank") == ["0", "1", "2"], "variables are as the cell left them"


def test_a_call_may_be_open_from_one_cell_to_the_next(three: Ranks) -> None:
    three.run("work = dist.isend(x, 1) if rank == 0 else None")
    three.run("if rank == 1: dist.recv(x, 0)")
    assert values(three, "work and work.wait()\nx.item()") == ["0.0", "0.0", "2.0"]


def test_a_cell_that_takes_too_long_is_ended() -> None:
    for on in ("simulated", "processes"):
        with ranks(2, on=on, timeout=2) as two:
            with pytest.raises(TimedOut):
                two.run("while True: pass")
            assert values(two, "1 + 1") == ["2", "2"]


@pytest.mark.parametrize(
    ("cell", "error"), [("while True: pass", TimedOut), ("time.sleep(40)", RanksLeftBehind)]
)
def test_a_stopped_cell_keeps_nothing_else_from_being_profiled(cell: str, error: type[Exception]) -> None:
    # Invariant: CPython 3.11 runs into an endless loop where it is profiled while an exception is pending.
    def profiled() -> None:
        import torch.distributed as dist

        sys.setprofile(lambda *_: None)
        dist.barrier()
        sys.setprofile(None)

    with ranks(2, timeout=1) as two, pytest.raises(error):
        two.run(f"import time\n{cell}")
    launch(profiled, ranks=2, timeout=30)


def test_ranks_that_cannot_be_stopped_are_left_with_a_sentence() -> None:
    with ranks(2, timeout=1) as two:
        with pytest.raises(RanksLeftBehind, match=r"cannot be stopped, such as a long time\.sleep"):
            two.run("import time\ntime.sleep(5)")
        with pytest.raises(BadLaunch, match="These ranks have ended"):
            two.run("1")


STOPPED = {
    "all compute": "while True: time.sleep(0.01)",
    "two wait": "if rank: dist.all_reduce(x)\nwhile True: time.sleep(0.01)",
    "one waits, two sleep": "dist.barrier(group=pair) if rank == 0 else time.sleep(100)",
}


@pytest.mark.parametrize("stopped", STOPPED)
def test_the_stop_button_ends_the_cell_and_not_the_ranks(three: Ranks, stopped: str) -> None:
    if three.on == "simulated" and "sleep(100)" in STOPPED[stopped]:
        return  # a long sleep cannot be stopped there, as another test says
    three.run("import time\npair = dist.new_group([0, 2])")
    timer = threading.Timer(1.5, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        three.run(f"kept = rank\ndist.barrier()\n{STOPPED[stopped]}")
    assert values(three, "kept") == ["0", "1", "2"]
    assert sums_up(three)


def test_who_is_stopped_imports_to_the_end(three: Ranks, tmp_path: Path) -> None:
    # Invariant: no half of a module stays behind, on which every later cell would fail.
    lines = (
        "import time",
        "from pathlib import Path",
        "from torch.distributed import get_rank",
        f"(Path({str(tmp_path)!r}) / str(get_rank())).touch()",
        "time.sleep(1)",
        "done = 1",
    )
    (tmp_path / "stopped_in_a_cell.py").write_text("\n".join(lines))

    def stop_when_all_have_begun() -> None:
        # Simulated ranks import a module once.
        while len([*tmp_path.glob("[012]")]) < (1 if three.on == "simulated" else 3):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=stop_when_all_have_begun).start()
    three.run(f"import sys, time\nsys.path.insert(0, {str(tmp_path)!r})")
    with pytest.raises(KeyboardInterrupt):
        three.run("import stopped_in_a_cell\nwhile True: time.sleep(0.01)")
    assert values(three, "sys.modules['stopped_in_a_cell'].done") == ["1"] * 3


DDP = """
from torch.nn.parallel import DistributedDataParallel
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(2, 1))
pair = dist.new_group([0, 2])
"""


def test_what_holds_a_group_finds_it_connected_again(three: Ranks) -> None:
    three.run(DDP)
    for mistake in ("if rank: dist.recv(x)", "if rank == 2: dist.all_reduce(x, group=pair)"):
        with pytest.raises(Deadlock):
            three.run(mistake)
        three.run("model(torch.full((4, 2), x.item())).square().mean().backward()")
        three.run("gradient = model.module.weight.grad.clone()\nmodel.zero_grad()")
        gradients = [three[rank]["gradient"] for rank in range(3)]
        assert all(torch.equal(gradients[0], other) for other in gradients[1:])
        assert values(three, "t = torch.ones(1)\nif rank != 1: dist.all_reduce(t, group=pair)\nt.item()") == [
            "2.0",
            "1.0",
            "2.0",
        ]


ENDS = {
    "killed": ("import os, signal\nif rank == 2: os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    "exits": ("import os\nif rank == 2: os._exit(3)", "exit code 3"),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_process_that_ends_is_replaced_and_the_others_keep_their_variables(end: str) -> None:
    code, says = ENDS[end]
    with ranks(3, on="processes") as three:
        three.run(f"{BEGIN}\npair, others = dist.new_group([0, 2]), dist.new_group([0, 1])")
        with pytest.raises(RankFailed, match=says) as told:
            three.run(f"{code}\ndist.barrier()")
        assert "The variables of rank 2 are gone: a new process is in its place" in str(told.value)
        assert "Groups made by new_group that one of its members has lost are gone, of ranks 0, 2." in str(
            told.value
        )
        assert sums_up(three)
        assert values(three, "rank", on=[0, 1]) == ["0", "1"]
        three.run("t = torch.ones(1)\ndist.all_reduce(t, group=others)", on=[0, 1])
        assert three[1]["t"] == 2
        with pytest.raises(RankFailed, match="This group of ranks 0, 2 is gone"):
            three.run("dist.all_reduce(t, group=pair)", on=[0])
        three.run(BEGIN)
        three.run("pair = dist.new_group([0, 2])\nif rank != 1: dist.all_reduce(x, group=pair)")
        assert values(three, "x.item()") == ["2.0", "1.0", "2.0"]


def test_a_process_that_hears_nothing_is_replaced() -> None:
    # It loops in C, with Python's lock in its hands: no signal handler runs there, and no other thread.
    deaf = "if rank: sum(range(10**13))"
    with ranks(2, on="processes", timeout=2) as two:
        two.run(BEGIN)
        with pytest.raises(TimedOut, match="The variables of rank 1 are gone"):
            two.run(deaf)
        assert values(two, "rank", on=[0]) == ["0"]
        assert values(two, "import torch\ntorch.ones(1).item()") == ["1.0"] * 2


def test_clock_traffic_and_timeline_go_on_from_cell_to_cell() -> None:
    cluster = Cluster(devices_per_node=2, intra_node=Link(1.0, 1e9))
    with ranks(cluster=cluster) as two:
        two.run(BEGIN)
        for number in range(1, 4):
            two.run("dist.barrier()")
            assert two.record.seconds == pytest.approx(number * two.record.events[0].seconds)
        assert two.record.traffic[0].calls == {"barrier": 3}
        assert "3 barrier" in two.timeline().alt


def test_traffic_timeline_and_memory_cover_all_cells_while_the_ranks_live_and_afterwards() -> None:
    for on in ("simulated", "processes"):
        with ranks(2, on=on, memory=True) as two:
            two.run(BEGIN)
            for number in range(1, 4):
                two.run(f"kept{number} = torch.zeros(1000)\ndist.barrier()")
                assert two.record.traffic[0].calls == {"barrier": number}
                assert two.record.memory[1].peak >= 4000 * number
            with pytest.raises(Deadlock):
                two.run("dist.recv(x, 1 - rank)")
            two.run("dist.barrier()")
            assert "4 barrier" in two.timeline().alt
            before = two.record
        assert "4 barrier" in two.timeline().alt
        assert two.record.events == before.events
        starts = [event.start for event in before.events]
        assert starts == sorted(starts)


def test_the_clock_of_processes_stands_still_between_cells() -> None:
    with ranks(2, on="processes") as two:
        two.run(BEGIN)
        for _ in range(2):
            time.sleep(2)
            began, before = time.perf_counter(), two.record.seconds
            two.run("dist.barrier()")
            took = time.perf_counter() - began
            assert two.record.seconds - before <= took
    assert all(event.end <= two.record.seconds for event in two.record.events)


def test_a_device_with_a_queue_goes_on_too() -> None:
    queue = Device(flops=1e3, dispatch_seconds=1.0)
    with ranks(1, cluster=Cluster(device=queue)) as one:
        one.run("import torch\nx = torch.ones(10, 10)")
        before = one.record.seconds
        one.run("y = x @ x")
        one.run("y.sum().item()")
        assert one.record.seconds > before + 2
        assert [event.op for event in one.record.events if event.kind is Kind.HOST][:2] == ["queues", "waits"]


def test_every_rank_draws_its_own_random_numbers_on_and_the_notebook_its_own() -> None:
    def drawn() -> tuple[Any, ...]:
        torch.manual_seed(3)
        random.seed(3)
        return torch.rand(1), random.random()

    alone = drawn()
    torch.manual_seed(3)
    random.seed(3)
    with ranks(2, seed=5) as two:
        first = values(two, "import torch, random\ntorch.rand(1).item(), random.random()")
        assert launch(torch.rand, 1, ranks=1, seed=1).seconds == 0
        second = values(two, "torch.rand(1).item(), random.random()")
    assert first[0] == first[1] != second[0] == second[1]
    assert (torch.rand(1), random.random()) == alone


def test_simulated_ranks_leave_no_thread() -> None:
    before = threading.active_count()
    with ranks(8) as eight:
        eight.run(BEGIN)
        assert threading.active_count() == before + 8
    assert threading.active_count() == before
    with pytest.raises(BadLaunch, match="These ranks have ended"):
        eight.run("1")


KERNEL = """
import os, sys, time
from course_lib.notebook.staying import ranks
if __name__ == "__main__":
    there = ranks(2, on="processes")
    there.run("import os")
    print(*[answer.value for answer in there.run("os.getpid()")], flush=True)
    if sys.argv[1] == "waits":
        time.sleep(300)
"""


@pytest.mark.parametrize("end", ["returns", "killed"])
def test_processes_end_with_the_notebook_whatever_ends_it(tmp_path: Path, end: str) -> None:
    script = tmp_path / "kernel.py"
    script.write_text(KERNEL)
    command = [sys.executable, str(script), "waits" if end == "killed" else "returns"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as kernel:
        assert kernel.stdout is not None
        pids = [int(pid) for pid in kernel.stdout.readline().split()]
        assert len(pids) == 2
        if end == "killed":
            kernel.kill()
        kernel.wait(60)
    deadline = time.monotonic() + 60
    while any(map(_is_there, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(_is_there, pids))
    with scratch_folder():  # sweeps what the killed one could not
        pass


def _is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ranks(), "How many ranks"),
        (lambda: ranks(0), "ranks is 0; a launch needs at least one rank"),
        (lambda: ranks(4, cluster=Cluster()), "do not fit"),
        (lambda: ranks(2, on="paper"), '"simulated", "processes" or "slurm"; got "paper"'),
        (lambda: ranks(2, timeout=0), "above 0"),
        (lambda: ranks(cluster=Cluster().with_lost_rank(0)), "cannot stay"),
        (lambda: launch(lambda: ranks(2), ranks=1), "a rank cannot start ranks"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, says: str) -> None:
    with pytest.raises((BadLaunch, RankFailed), match=says):
        make()


# --- In a notebook


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.display_pub = CapturingDisplayPublisher()
    run(shell, "%load_ext course_lib.notebook.magics\nimport torch\nimport torch.distributed as dist")
    yield shell
    run(shell, "%ranks stop")
    InteractiveShell.clear_instance()


def run(shell: InteractiveShell, cell: str) -> None:
    shell.run_cell(cell, store_history=True).raise_error()


def shown(shell: Any) -> str:
    return str(shell.display_pub.outputs[-1]["data"]["text/plain"])


def test_cells_of_a_notebook_run_on_ranks_that_stay(shell: InteractiveShell) -> None:
    run(shell, "%ranks start 4")
    run(shell, "%%ranks\nx = torch.tensor(dist.get_rank())")
    run(shell, "%%ranks\ndist.all_reduce(x)\nx")
    assert shown(shell) == "ranks 0-3:\n    → tensor(6)"
    run(shell, "%%rank 0,2-3\nx * dist.get_rank()")
    assert shown(shell) == "rank 0:\n    → tensor(0)\nrank 2:\n    → tensor(12)\nrank 3:\n    → tensor(18)"
    run(shell, "%%ranks 2\ndist.get_world_size()")
    assert shown(shell).count("→ 2") == 2, "with a number: a launch of its own"
    run(shell, "%%rank 1\nx")
    assert shown(shell) == "rank 1:\n    → tensor(6)"


def test_a_notebooks_variable_is_copied_when_a_cell_first_uses_it_and_when_it_is_new(shell: Any) -> None:
    run(shell, "%ranks start 2")
    run(shell, "def double(x):\n    return 2 * x")
    run(shell, "%%ranks\ndouble(dist.get_rank() + 1)")
    assert shown(shell) == "rank 0:\n    → 2\nrank 1:\n    → 4"
    run(shell, "def double(x):\n    return x + x + 1")
    run(shell, "%%ranks\ndouble(dist.get_rank() + 1)")
    assert shown(shell) == "rank 0:\n    → 3\nrank 1:\n    → 5"
    run(shell, "own = 1")
    run(shell, "%%ranks\nown = own + dist.get_rank()")
    run(shell, "own = 7")
    run(shell, "%%ranks\nown")
    assert shown(shell) == "rank 0:\n    → 1\nrank 1:\n    → 2", "what a rank has assigned is its own"
    run(shell, "seen = [0]")
    run(shell, "%%ranks\nseen.append(1)")
    run(shell, "%%ranks\nseen")
    assert shown(shell) == "ranks 0, 1:\n    → [0, 1]"
    run(shell, "%ranks put seen")
    run(shell, "%%ranks\nseen")
    assert shown(shell) == "ranks 0, 1:\n    → [0]"


def test_what_one_rank_alone_has_got_anew_the_others_get_when_they_need_it(shell: Any) -> None:
    run(shell, "%ranks start 2\nrate = [1]")
    run(shell, "%%ranks\nrate")
    run(shell, "rate = [2]")
    run(shell, "%%rank 1\nrate")
    assert shown(shell) == "rank 1:\n    → [2]"
    run(shell, "%%ranks\nrate")
    assert shown(shell) == "ranks 0, 1:\n    → [2]"


def test_a_mistake_is_told_with_the_cells_line_and_what_was_printed(shell: Any) -> None:
    run(shell, "%ranks start 2")
    with pytest.raises(Deadlock, match="cell In") as told:
        run(shell, "%%ranks\nprint('before')\ndist.recv(torch.ones(1), 1 - dist.get_rank())")
    assert "line 3" in str(told.value)
    assert "before" in shown(shell)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("%ranks begin", "none of %ranks start 4, status"),
        ("%ranks start four", "how many ranks?"),
        ("%ranks start --cluster no_cluster", "'no_cluster' does not"),
        ("%ranks put nothing_here", "no variable 'nothing_here'"),
        ("%%rank 7\n1", "There is no rank 7: the ranks are 0 to 1"),
        ("%%rank two\n1", "which ranks?"),
    ],
)
def test_a_line_that_makes_no_sense_is_a_sentence(shell: Any, line: str, says: str) -> None:
    run(shell, "%ranks start 2")
    with pytest.raises(BadLaunch, match=says):
        run(shell, line)


def test_without_ranks_a_sentence_says_how_to_start_some(shell: Any) -> None:
    with pytest.raises(BadLaunch, match="%ranks start 4 starts four"):
        run(shell, "%ranks status")


def test_status_and_timeline(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run(shell, "%ranks start 2")
    run(shell, "%%ranks\nx = torch.ones(1)\ndist.all_reduce(x)")
    run(shell, "%ranks status")
    assert "2 ranks on simulated" in capsys.readouterr().out
    run(shell, "figure = %ranks timeline")
    assert "1 all_reduce" in shell.user_ns["figure"].alt


PAGE = Path(__file__).parents[1] / "docs" / "debugging.md"


def test_the_page_on_debugging_does_what_it_says(shell: Any) -> None:
    # Its cells, in their order; those of the section on mistakes end as it says.
    sections = PAGE.read_text().split("\n## ")
    cells = {
        section.splitlines()[0]: [block.split("```")[0].strip("\n") for block in section.split("```\n")[1::2]]
        for section in sections[1:]
    }
    assert [len(blocks) for blocks in cells.values()] == [1] * 6
    (start,), (model,), (step,), (looking,), (mistake,), (processes,) = cells.values()
    for cell in (start, model, step, step, looking):
        run(shell, cell)
    assert "ranks 0, 3:" in shown(shell)
    with pytest.raises(Deadlock, match="rank 0 waits for rank 1") as told:
        run(shell, mistake)
    assert told.value.finished == (1,)
    run(shell, step)
    run(shell, "%ranks status")
    for cell in (processes, model, step):
        run(shell, cell)
    with pytest.raises(Deadlock, match="rank 0 waits for rank 1"):
        run(shell, mistake)
    for cell in (step, looking):
        run(shell, cell)
    assert "ranks 0, 3:" in shown(shell)


# --- In a real kernel


@pytest.fixture(scope="module")
def kernel() -> Iterator[tuple[OwnSocketsManager, Any]]:
    manager = OwnSocketsManager(kernel_name="python3")
    run_sync(manager.start_kernel)(
        cwd=str(PAGE.parents[1]), extra_arguments=["--HistoryManager.hist_file=:memory:"]
    )
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=200)
        answered(client, "import sys; sys.path.insert(0, '')\n%load_ext course_lib.notebook.magics")
        yield manager, client
    finally:
        client.stop_channels()
        run_sync(manager.shutdown_kernel)(now=True)
        with scratch_folder():  # sweeps what a killed kernel could not
            pass


def answered(client: Any, code: str) -> tuple[str, str]:
    """The name of the error that a cell ended with, or "ok"; and what it has put out, as text."""
    messages: list[Any] = []
    reply = client.execute_interactive(code, timeout=200, output_hook=messages.append)["content"]
    texts = [m["content"].get("data", {}).get("text/plain", "") for m in messages]
    return reply.get("ename", reply["status"]), "\n".join(texts)


@pytest.mark.parametrize("on", ["simulated", "processes"])
def test_an_interrupted_kernel_keeps_its_ranks(kernel: tuple[OwnSocketsManager, Any], on: str) -> None:
    manager, client = kernel
    answered(client, f"%ranks start 2 --on {on}")
    stop = threading.Timer(3, run_sync(manager.interrupt_kernel))
    stop.start()
    code = "%%ranks\nimport time, torch.distributed as dist\nkept = dist.get_rank()\ndist.barrier()\n"
    ended, _ = answered(client, f"{code}while True: time.sleep(0.01)")
    assert ended == "KeyboardInterrupt"
    assert answered(client, "%%ranks\nkept") == ("ok", answered(client, "%%ranks\nkept")[1])
    assert "→ 1" in answered(client, "%%ranks\ndist.barrier()\nkept")[1]


@pytest.mark.parametrize("on", ["simulated", "processes"])
def test_output_is_there_while_a_cell_runs(kernel: tuple[OwnSocketsManager, Any], on: str) -> None:
    _, client = kernel
    answered(client, f"%ranks start 2 --on {on}")
    messages: list[Any] = []
    # Nobody can see the end of the loop before somebody has seen its beginning.
    code = (
        "%%ranks\nimport time, torch.distributed as dist\nprint('rank', dist.get_rank(), 'begins')\n"
        "dist.barrier()\ntime.sleep(2)\nprint('ends')\ndist.get_rank()"
    )
    client.execute_interactive(code, timeout=200, output_hook=messages.append)
    first, *later = [each for each in messages if "data" in each["content"]]
    assert first["msg_type"] == "display_data"
    assert {each["msg_type"] for each in later} == {"update_display_data"}
    texts = [each["content"]["data"]["text/plain"] for each in (first, *later)]
    assert "begins" in texts[0]
    assert "ends" not in texts[0]
    assert texts[-1] == "".join(
        f"rank {rank}:\n    rank {rank} begins\n    ends\n    → {rank}\n" for rank in range(2)
    ).rstrip("\n")
    assert len({each["content"]["transient"]["display_id"] for each in (first, *later)}) == 1
