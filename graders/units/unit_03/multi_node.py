"""What the graders of unit 03 draw and judge about nodes, ranks and batch scripts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from course_lib.slurm.lint import Script, complaints_about
from course_lib.slurm.sites import site_named
from graders.grading import compare
from graders.grading.answer import Answer
from graders.grading.exercise import Finding
from graders.grading.rng import Rng
from graders.units.unit_03 import launchers
from graders.units.unit_03.batch_job import JOB_SECONDS, Outcome, Trial
from graders.units.unit_03.launchers import Environment, Launcher, Seat
from graders.units.unit_03.topologies import Machine

# --- Host lists: drawn as text and hosts at once, so that nothing here has to read one


@dataclass(frozen=True, slots=True)
class Numbers:
    """A number or a range as it stands in brackets, and what it stands for."""

    text: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostList:
    """A host list, and its hosts."""

    text: str
    hosts: list[str]

    def __add__(self, other: "HostList") -> "HostList":
        return HostList(f"{self.text},{other.text}", self.hosts + other.hosts)


def expansions(criterion: str, answer: Answer, cases: Sequence[HostList]) -> Finding:
    """Passes if the answer expands every list."""
    finding = Finding(criterion, False, "")
    for case in cases:
        seen = answer.call("call_alone", case.text)
        finding = compare.equal(criterion, seen, case.hosts, f'the hosts of "{case.text}"')
        if not finding.passed:
            return finding
    return finding


def draw_names(rng: Rng) -> list[HostList]:
    """No host, one, and several of which one comes twice."""
    number = rng.integer(1, 90)
    alone, following = _plain(f"node{number}"), _plain(f"node{number + 1}")
    return [HostList("", []), alone, following + alone + _plain(f"login{number}.hpc") + following]


def draw_bracket(rng: Rng) -> list[HostList]:
    """One range, within a width and growing out of it; one single number."""
    number = rng.integer(20, 40)
    prefix = rng.choice(("node", "gpu", "uc1n"))
    return [
        _product(prefix, [_range(number, number + rng.integer(2, 5))]),
        _product(prefix, [_range(rng.integer(7, 9), rng.integer(11, 13))]),
        _product(prefix, [_range(number, number)]),
    ]


def draw_zeros(rng: Rng) -> list[HostList]:
    """As LUMI and Frontera number their nodes, with two widths, and over the end of a width."""
    number = rng.integer(5000, 7000)
    return [
        _product("nid", [_range(number, number + 3, width=6)]),
        _product(f"c{rng.integer(101, 199)}-", [_range(1, rng.integer(3, 6), width=3)]),
        _product("n", [_range(rng.integer(7, 8), rng.integer(10, 12), width=2)]),
        _product("n", [_range(98, rng.integer(101, 103), width=2)]),
        _product("n", [_range(0, 0, width=3)]),
    ]


def draw_list(rng: Rng) -> list[HostList]:
    """Numbers and ranges of different widths in one bracket, in any order, between other names."""
    first, later = rng.integer(1, 3), rng.integer(20, 30)
    bracket = _product(
        "c101-", [_join(_range(first, first + 2, 3), _range(7, 7, 3), _range(later, later + 1, 3))]
    )
    mixed = _product("n", [_join(_range(later, later + 2), _range(first, first, 2), _range(first, first))])
    return [bracket, mixed, _plain("login1") + bracket + mixed + _plain(f"n{later}")]


def draw_dimensions(rng: Rng) -> list[HostList]:
    """Two brackets in a name, and all kinds in one list. (With three, Slurm's own order follows no rule.)"""
    rack, node = rng.integer(1, 5), rng.integer(1, 8)
    inner = _join(_range(node, node + 1, 2), _range(node + 7, node + 7, 2))
    two = _product("rack", [_range(rack, rack + 1)], "-node", [inner])
    long = _product("r", [_join(_range(rack, rack), _range(rack + 2, rack + 3))], "c", [_range(8, 11)])
    return [two, long, long + _plain("login2") + two]


def _plain(name: str) -> HostList:
    return HostList(name, [name])


def _range(first: int, last: int, width: int = 1) -> Numbers:
    names = tuple(f"{number:0{width}}" for number in range(first, last + 1))
    return Numbers(names[0] if first == last else f"{names[0]}-{names[-1]}", names)


def _join(*several: Numbers) -> Numbers:
    return Numbers(
        ",".join(each.text for each in several), tuple(name for each in several for name in each.names)
    )


def _product(*parts: str | list[Numbers]) -> HostList:
    """A name of texts and brackets; a bracket is a list of one item."""
    text = "".join(part if isinstance(part, str) else f"[{part[0].text}]" for part in parts)
    choices = [(part,) if isinstance(part, str) else part[0].names for part in parts]
    return HostList(text, ["".join(names) for names in product(*choices)])


# --- Ranks


def places(criterion: str, answer: Answer, cases: Sequence[tuple[Launcher, list[Seat]]]) -> Finding:
    """Passes if the answer finds every seat in the environment that the launcher makes for it."""
    finding = Finding(criterion, False, "")
    for launcher, seats in cases:
        for seat in seats:
            finding = _place(criterion, answer, launcher(seat), seat.expected, _WORDS[launcher])
            if not finding.passed:
                return finding
    return finding


def alone(criterion: str, answer: Answer, seat: Seat) -> Finding:
    """Passes if a process that no launcher has started is the only one, in a batch script too."""
    only = Seat(0, 0, 0, 1, 1, 1).expected
    cases = {
        "without any launcher": {"PATH": "/usr/bin", "HOME": "/home/me"},
        "in a batch script itself, outside of srun": launchers.batch_script(seat),
    }
    findings = [_place(criterion, answer, case, only, words) for words, case in cases.items()]
    return next((finding for finding in findings if not finding.passed), findings[-1])


_WORDS: dict[Launcher, str] = {
    launchers.srun: "under srun",
    launchers.torchrun: "under torchrun",
    launchers.torchrun_by_srun: "under torchrun, which srun has started on each node",
    launchers.mpirun: "under mpirun",
    launchers.mpirun_in_a_job: "under mpirun in a Slurm job",
    launchers.horovodrun: "under horovodrun",
    launchers.horovodrun_in_a_job: "under horovodrun in a Slurm job",
}


def _place(
    criterion: str, answer: Answer, environment: Environment, expected: dict[str, int], words: str
) -> Finding:
    seen = answer.call("call_alone", environment)
    if type(seen) is dict and type(seen.get("rank")) is str:
        return Finding(criterion, False, f"{words}: the numbers are texts: {seen!r:.120}.")
    finding = compare.equal(criterion, seen, expected, f"a process {words}")
    if finding.passed:
        return finding
    told = ", ".join(f"{name}={value}" for name, value in environment.items() if name in _TELLING)
    return Finding(criterion, False, f"{finding.seen} It has {told or 'no variable of a launcher'}.")


_TELLING = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK"),
        *("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_ID"),
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        *("OMPI_COMM_WORLD_LOCAL_SIZE", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),
        "HOROVOD_CROSS_RANK",
    }
)
"""Variables shown beside a wrong place."""


# --- Cores beside GPUs


def bindings(criterion: str, answer: Answer, cases: Sequence[tuple[str, Machine]]) -> Finding:
    """Passes if the answer finds the core of every GPU in each text, which tells of the machine beside it."""
    finding = Finding(criterion, False, "")
    for text, machine in cases:
        seen = answer.call("call", text)
        gpus = ", ".join(f"GPU {gpu} on node {node}" for gpu, node in enumerate(machine.numa_of_gpu))
        finding = compare.equal(criterion, seen, machine.expected, f"cores for {gpus}")
        if not finding.passed:
            return finding
    return finding


# --- Batch scripts


def readable_script(criterion: str, text: object) -> Finding:
    """Passes if sbatch would read all that stands in the text, as it is meant."""
    if type(text) is not str:
        return Finding(criterion, False, f"batch_script returned {text!r:.80}; expected the script's text.")
    complaints = complaints_about(Script(text), site_named("local"))
    return Finding(criterion, not complaints, " ".join(complaints[:3]) or "sbatch reads every line as meant.")


def asked_for(criterion: str, outcome: Outcome, nodes: int, gpus_per_node: int) -> Finding:
    """Passes if Slurm has given the job what was asked for, for a bounded time."""
    if outcome.refused:
        return Finding(criterion, False, f"sbatch took no job. It said: {outcome.refused:.300}")
    if outcome.state not in ("COMPLETED", "FAILED"):
        said = f"The job did not end by itself within {JOB_SECONDS:.0f} s: it was {outcome.state}."
        return Finding(criterion, False, f"{said} {_said(outcome)}")
    seen = f"Slurm gave the job {outcome.nodes} nodes and {outcome.gpus} GPUs for {outcome.minutes:g} minutes"
    right = outcome.nodes == nodes and outcome.gpus == nodes * gpus_per_node and outcome.minutes <= MINUTES
    expected = f"{nodes} nodes and {nodes * gpus_per_node} GPUs for at most {MINUTES} minutes"
    return Finding(criterion, right, f"{seen}; expected {expected}.")


MINUTES = 30
"""The longest time limit that the exercise allows."""


def one_task_a_gpu(criterion: str, outcome: Outcome, trial: Trial, nodes: int, gpus: int) -> Finding:
    """Passes if the command ran once for each GPU, as tasks of one srun, with its words as they were."""
    tasks = Counter(note["host"] for note in outcome.notes)
    where = ", ".join(f"{count} on {host}" for host, count in sorted(tasks.items())) or "none"
    if sorted(tasks.values()) != [gpus] * nodes:
        text = (
            f"Processes of the command: {where}; expected {gpus} on each of {nodes} nodes. {_said(outcome)}"
        )
        return Finding(criterion, False, text)
    ranks = sorted(str(note.get("SLURM_PROCID")) for note in outcome.notes)
    if ranks != sorted(map(str, range(nodes * gpus))):
        text = f"The processes' SLURM_PROCID are {', '.join(ranks)}; expected each of 0 to {nodes * gpus - 1}"
        return Finding(criterion, False, f"{text} once: one srun has to start them all.")
    words = next((note["words"] for note in outcome.notes if note["words"] != list(trial.words)), None)
    if words is not None:
        return Finding(criterion, False, f"The command's words were {words!r:.200}, not {list(trial.words)}.")
    return Finding(criterion, True, f"Processes of the command: {where}.")


def meeting_place(criterion: str, outcome: Outcome) -> Finding:
    """Passes if rank 0 listened at MASTER_PORT, and all others reached it at MASTER_ADDR."""
    named = {(str(note.get("MASTER_ADDR")), str(note.get("MASTER_PORT"))) for note in outcome.notes}
    shown = " and ".join(f"MASTER_ADDR={address}, MASTER_PORT={port}" for address, port in sorted(named))
    if len(named) != 1:
        return Finding(criterion, False, f"The processes do not agree on one place: {shown:.300}.")
    lost = sorted(str(note.get("SLURM_PROCID")) for note in outcome.notes if note.get("met") is not True)
    if lost:
        return Finding(
            criterion, False, f"With {shown}, these ranks did not meet the others: {', '.join(lost)}."
        )
    return Finding(criterion, True, f"With {shown} all ranks met rank 0.")


def fails_with_the_training(criterion: str, well: Outcome, ill: Outcome) -> Finding:
    """Passes if the job's state is what its training's exit status says."""
    right = (well.state, ill.state) == ("COMPLETED", "FAILED")
    text = f"After a training that ended well the job was {well.state}, after one that failed {ill.state}"
    return Finding(criterion, right, f"{text}; expected COMPLETED and FAILED.")


def _said(outcome: Outcome) -> str:
    return f"The job's output: {outcome.output.strip()[-300:]}" if outcome.output.strip() else ""
