"""`%%ranks` in a real IPython shell: each rank's output apart, errors with the cell's own lines."""

import re
from pathlib import Path

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

from course_lib.errors import BadLaunch
from course_lib.launch.failures import CollectiveMismatch, Deadlock, RankFailed
from course_lib.launch.run import Run
from course_lib.notebook.cell import CellSyntaxError
from course_lib.notebook.verdicts import note_points

SOLUTIONS = Path(__file__).parents[1] / "solutions"
UNITS = [path.stem for path in sorted(SOLUTIONS.glob("[0-9][0-9]_*.py"))]


@pytest.fixture
def shell():
    """An IPython shell with the magic loaded and torch.distributed imported, whose displays are kept."""
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.display_pub = CapturingDisplayPublisher()
    run(shell, "%load_ext course_lib.notebook.magics\nimport torch\nimport torch.distributed as dist")
    yield shell
    InteractiveShell.clear_instance()


def run(shell, cell):
    """Run a cell; raise what it raised."""
    result = shell.run_cell(cell, store_history=True)
    result.raise_error()
    return result


def shown(shell):
    """The text that the last cell displayed."""
    return shell.display_pub.outputs[-1]["data"]["text/plain"]


def error_of(shell, cell, kind):
    with pytest.raises(kind) as caught:
        run(shell, cell)
    return caught.value


def test_each_rank_runs_the_cell_and_its_output_stands_apart(shell):
    run(shell, "%%ranks 3\nprint('hello from', dist.get_rank())\nprint('of', dist.get_world_size())")
    assert shown(shell) == "\n".join(f"rank {rank}:\n    hello from {rank}\n    of 3" for rank in range(3))


SUM = """%%ranks 2
x = torch.full((2,), float(dist.get_rank() + 1))
dist.all_reduce(x)
x * dist.get_rank()
"""


def test_the_value_of_the_last_expression_is_shown_for_each_rank(shell):
    run(shell, SUM)
    assert shown(shell) == "rank 0:\n    → tensor([0., 0.])\nrank 1:\n    → tensor([3., 3.])"


@pytest.mark.parametrize("last", ["x = 1", "1;", "None", "if True:\n    1"])
def test_a_cell_without_a_value_or_output_shows_nothing(shell, last):
    run(shell, f"%%ranks 2\n{last}")
    assert not shell.display_pub.outputs


def test_the_table_for_the_eye_says_the_same_and_runs_nothing(shell):
    run(shell, "%%ranks 2\nprint('<script>alert(1)</script>')")
    page = shell.display_pub.outputs[-1]["data"]["text/html"]
    assert "<script>" not in page
    assert re.findall(r"<th[^>]*>([^<]*)</th>", page) == ["rank 0", "rank 1"]


def test_many_ranks_with_the_same_output_are_shown_together(shell):
    run(shell, "%%ranks 12\nprint('even' if dist.get_rank() % 2 == 0 else 'odd')")
    assert shown(shell) == "ranks 0, 2, 4, 6, 8, 10:\n    even\nranks 1, 3, 5, 7, 9, 11:\n    odd"


CHANGES = """%%ranks 2
values.append(dist.get_rank())
with torch.no_grad():
    model.weight += dist.get_rank() + 1
new = 1
print(values, model.weight.item())
"""


def test_each_rank_starts_with_a_copy_of_the_notebooks_names(shell):
    # A rank sees the notebook's values, and neither the notebook nor another rank sees what it does to them.
    run(shell, "values = [0]\nmodel = torch.nn.Linear(1, 1, bias=False)\ntorch.nn.init.zeros_(model.weight)")
    run(shell, CHANGES)
    assert shown(shell) == "rank 0:\n    [0, 0] 1.0\nrank 1:\n    [0, 1] 2.0"
    assert shell.user_ns["values"] == [0]
    assert shell.user_ns["model"].weight.item() == 0
    assert "new" not in shell.user_ns


FUNCTIONS = """
scale, offset = 10, 0

def scaled(x, *, by=1):
    'doc'
    return helper(x) * scale * by

def helper(x):
    return x + offset
"""


def test_the_notebooks_functions_read_the_ranks_variables(shell):
    run(shell, FUNCTIONS)
    run(shell, "%%ranks 2\noffset = dist.get_rank()\nscaled(1, by=2), scaled.__doc__")
    assert shown(shell) == "rank 0:\n    → (20, 'doc')\nrank 1:\n    → (40, 'doc')"
    assert shell.user_ns["offset"] == 0


DEFINITIONS = """%%ranks 2
class Twice:
    def __call__(self, x):
        return 2 * x

def outer():
    return [f(r) for r in (rank, rank + 1)]

rank = dist.get_rank()
f = Twice()
outer()
"""


def test_the_cell_may_define_classes_and_functions_and_comprehensions(shell):
    run(shell, DEFINITIONS)
    assert shown(shell) == "rank 0:\n    → [0, 2]\nrank 1:\n    → [2, 4]"


def test_the_run_can_be_kept(shell):
    run(shell, "%%ranks 2 --run last\nx = torch.ones(1)\ndist.all_reduce(x)\nx")
    kept = shell.user_ns["last"]
    assert isinstance(kept, Run)
    assert kept.results == ["tensor([2.])"] * 2
    assert kept.traffic[0].calls == {"all_reduce": 1}
    assert "Timeline of 2 ranks" in kept.timeline().alt


def test_the_number_may_come_from_a_variable_and_the_cluster_too(shell):
    run(shell, "from course_lib import Cluster\nranks = 3\npair = Cluster(nodes=2, devices_per_node=1)")
    run(shell, "%%ranks $ranks --run last\n1")
    assert shell.user_ns["last"].ranks == 3
    run(shell, "%%ranks --cluster pair --run last\n1")
    assert shell.user_ns["last"].ranks == 2
    assert shell.user_ns["last"].cluster is shell.user_ns["pair"]


ON_PROCESSES = """%%ranks 2 --on processes
x = torch.full((1,), float(dist.get_rank()))
dist.all_reduce(x)
print('process of', dist.get_rank())
plus(int(x)), dist.get_backend()
"""


def test_the_cell_runs_on_processes(shell):
    run(shell, "base = 5\ndef plus(x):\n    return base + x")
    run(shell, ON_PROCESSES)
    assert shown(shell) == "\n".join(
        f"rank {rank}:\n    process of {rank}\n    → (6, 'gloo')" for rank in range(2)
    )


# The first barrier: rank 1 must not end the run before rank 0 has printed.
FAILS = """%%ranks 2 --on {engine}
print('before')
dist.barrier()
if dist.get_rank() == 1:
    1 / 0
dist.barrier()
"""


@pytest.mark.parametrize("engine", ["simulated", "processes"])
def test_an_error_is_told_with_the_cells_line_and_the_output_until_then(shell, engine):
    number = shell.execution_count
    error = error_of(shell, FAILS.format(engine=engine), RankFailed)
    assert error.root.rank == 1
    assert error.root.type == "ZeroDivisionError"
    assert "line 5: 1 / 0" in error.report
    assert "course_lib" not in error.report, "only the cell's own lines"
    assert shown(shell) == "rank 0:\n    before\nrank 1:\n    before"
    name = shell.compile.format_code_name(next(iter(reversed(shell.compile._filename_map))))
    assert name == ("Cell", f"In[{number}]")


def test_a_deadlock_names_the_cells_lines(shell):
    error = error_of(shell, "%%ranks 2\nx = torch.ones(1)\ndist.recv(x, 1 - dist.get_rank())", Deadlock)
    assert [call.line.line for call in error.waiting] == [3, 3]
    assert [call.line.text for call in error.waiting] == ["dist.recv(x, 1 - dist.get_rank())"] * 2


def test_a_mismatch_is_told(shell):
    error_of(shell, "%%ranks 2\ndist.all_reduce(torch.ones(1 + dist.get_rank()))", CollectiveMismatch)


def test_an_error_inside_a_notebooks_function_keeps_that_cells_line(shell):
    run(shell, "def half(x):\n    y = x / 0\n    return y")
    error = error_of(shell, "%%ranks 2\nhalf(dist.get_rank())", RankFailed)
    assert re.search(r"line 2: y = x / 0", error.report)
    assert re.search(r"line 2: half\(dist.get_rank\(\)\)", error.report)


def test_wrong_syntax_is_told_with_the_cells_line(shell):
    error = error_of(shell, "%%ranks 2\na = 1\nb = ]", CellSyntaxError)
    assert error.error.lineno == 3
    assert "b = ]" in "\n".join(error._render_traceback_())
    assert not shell.display_pub.outputs


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "how many ranks"),
        ("two", "invalid int value: 'two'"),
        ("0", "at least one rank"),
        ("2 --on mars", 'no engine "mars"'),
        ("2 --bogus", "unrecognized arguments: --bogus"),
        ("--cluster torch", "holds a Cluster"),
    ],
)
def test_a_magic_line_that_makes_no_sense_says_what_to_write(shell, line, words):
    assert words in str(error_of(shell, f"%%ranks {line}\n1", BadLaunch))


def test_the_shell_is_usable_afterwards(shell):
    error_of(shell, "%%ranks 2\n1 / 0", RankFailed)
    run(shell, "%%ranks 2\ndist.get_rank()")
    assert shown(shell) == "rank 0:\n    → 0\nrank 1:\n    → 1"
    run(shell, "after = 1 + 1")
    assert shell.user_ns["after"] == 2


# --- %%needs


STUBS = """
def answer():
    raise NotImplementedError()

class Wrapper:
    def step(self):
        raise NotImplementedError()
"""


def test_a_cell_that_needs_an_unsolved_exercise_says_so_and_raises_nothing(shell, capsys):
    run(shell, STUBS)
    run(shell, "%%needs answer Wrapper nowhere\nresult = answer()")
    told = capsys.readouterr().out
    assert "This cell uses your nowhere, which this kernel has not met yet. Run its cell first" in told
    assert "This cell uses your answer, Wrapper. Solve that first" in told
    assert "result" not in shell.user_ns


def test_an_exercise_is_unsolved_as_long_as_what_stands_in_its_cell_is(shell, capsys):
    begins = "import torch\nclass Inner:\n    @staticmethod\n    def run():\n        "
    run(shell, STUBS)
    run(shell, f"{begins}raise NotImplementedError()\ndef outer():\n    return Inner.run() or answer()")
    run(shell, "%%needs outer\nresult = outer()")
    assert "This cell uses your outer." in capsys.readouterr().out
    # Invariant: an exercise of another cell, which it uses too, is another one's matter.
    run(shell, f"{begins}return 42\ndef outer():\n    return Inner.run() or answer()")
    assert run(shell, "%%needs outer\nouter()").result == 42


def test_a_cell_whose_exercises_are_solved_runs_as_any_other(shell):
    run(shell, "def answer():\n    return 41")
    assert run(shell, "%%needs answer\nresult = answer()\nresult + 1").result == 42
    assert shell.user_ns["result"] == 41
    assert run(shell, "%%needs answer\nresult;").result is None


def test_a_cell_that_needs_a_library_says_what_to_run_where_it_is_absent(shell, capsys, monkeypatch):
    monkeypatch.setattr("course_lib.notebook.magics.missing", {"there": "", "absent": "Install it."}.get)
    assert run(shell, "%%needs beside:there\nanswer = 42\nanswer;").result is None
    assert shell.user_ns["answer"] == 42
    run(shell, "%%holds beside:absent\nassert False")
    assert not capsys.readouterr().out
    run(shell, "%%needs beside:absent\nassert False")
    assert capsys.readouterr().out == "Install it.\n"


def test_a_cell_that_needs_a_newer_pytorch_says_so(shell, capsys):
    assert run(shell, "%%needs torch>=2.6\nanswer = 42\nanswer;").result is None
    assert shell.user_ns["answer"] == 42
    run(shell, "%%holds torch>=99.0\nassert False")
    assert not capsys.readouterr().out
    run(shell, "%%needs torch>=99.0\nassert False")
    assert "needs PyTorch 99.0 or later, and here is 2." in capsys.readouterr().out


@pytest.mark.parametrize("magic", ["needs", "holds"])
def test_an_assertion_of_such_a_cell_fails_the_notebook(shell, magic):
    # Invariant: what a demonstration promises is not lost in the magic.
    run(shell, "def answer():\n    return 41")
    error_of(shell, f"%%{magic} answer\nassert answer() == 42", AssertionError)


@pytest.mark.parametrize("magic", ["needs", "holds"])
def test_a_cell_with_a_wrong_answer_says_so_and_raises_nothing(shell, magic, capsys, monkeypatch):
    # Invariant: a wrong answer does not stop "Run all"; no error is hidden by a right one, or where all are.
    name = f"answer_of_{magic}"
    run(shell, f"def {name}():\n    return 41")
    cell = f"%%{magic} {name}\nassert {name}() == 42, 'not so'"
    note_points(name, 1, 8)
    assert run(shell, cell).result is None
    told = capsys.readouterr().out
    assert f"the last check saw a mistake in your {name} (1 of 8 points)." in told
    assert ("AssertionError: not so" in told) == (magic == "needs")
    error_of(shell, f"%%{magic} {name}\nb = ]", CellSyntaxError)
    monkeypatch.setenv("COURSE_SOLVED", "1")
    error_of(shell, cell, AssertionError)
    monkeypatch.delenv("COURSE_SOLVED")
    note_points(name, 8, 8)
    error_of(shell, cell, AssertionError)


def test_the_assertions_behind_a_cell_say_nothing_a_second_time(shell, capsys):
    run(shell, STUBS)
    run(shell, "%%holds answer\nassert answer() == 42")
    assert not capsys.readouterr().out


@pytest.mark.parametrize("unit", UNITS)
def test_a_demonstration_uses_answers_that_are_checked_above_it(unit):
    # Invariant: when such a cell runs in "Run all", it is known whether its answers are right.
    checked: set[str] = set()
    for line in (SOLUTIONS / f"{unit}.py").read_text().splitlines():
        if found := re.match(r'# %% .*exercise="(\w+)"', line):
            checked.add(found[1])
        if found := re.match(r"# %%(?:needs|holds) (.*)", line):
            names = [name for name in found[1].split() if not name.startswith(("beside:", "torch>="))]
            assert set(names) <= checked, line
