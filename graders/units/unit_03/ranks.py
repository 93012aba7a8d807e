"""Unit 03, rank, local rank, node rank, world size."""

import re
from collections.abc import Mapping, Sequence

from graders.grading.kit import Answer, AnswerFailed, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.raised import raised_in
from graders.units.unit_03 import launchers
from graders.units.unit_03.drivers import texts as drivers
from graders.units.unit_03.launchers import Environment, Launcher, Seat


@exercise(
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "srun",
            1,
            "SLURM_PROCID, SLURM_LOCALID and SLURM_NODEID say where the task is, however the tasks were "
            "dealt out; SLURM_NTASKS says how many there are. They are texts: return whole numbers. "
            "MASTER_ADDR and WORLD_SIZE are torchrun's, and a script may export them too; OMPI_MCA_btl and "
            "HOROVOD_FUSION_THRESHOLD are a user's, and srun --mpi=pmix sets PMIX_RANK.",
        ),
        Criterion(
            "torchrun",
            1,
            "torchrun calls the node's number GROUP_RANK. Nodes may have different numbers of ranks.",
            needs=(),
        ),
        Criterion(
            "mpirun",
            1,
            "Open MPI does not number the nodes: OMPI_COMM_WORLD_NODE_RANK counts processes on a node. "
            "How many processes has a node, and which are on the first?",
            needs=(),
        ),
        Criterion(
            "Horovod",
            1,
            'Horovod\'s "cross" rank counts along the processes of equal local rank: one per node. Nodes may '
            "have different numbers of ranks.",
            needs=(),
        ),
        Criterion(
            "one launcher inside another",
            2,
            "Variables are inherited. The launcher that started this very process is the innermost one: "
            "ask for torchrun's, Horovod's and Open MPI's variables before you ask for Slurm's. MASTER_ADDR "
            "and WORLD_SIZE may be a user's.",
            needs=("torchrun", "mpirun", "Horovod"),
        ),
        Criterion(
            "no launcher",
            1,
            "Without a launcher there is one process, rank 0 of 1. A batch script's shell is such a "
            "process: it has SLURM_PROCID=0 and SLURM_NTASKS, but no SLURM_STEP_ID, since no srun has "
            "started it.",
        ),
    ),
    hints=(
        "Which process has started this one, and which of the variables did that process set?",
        "Write a table: for each launcher the names of its four variables. Then look which launcher's are "
        "there.",
        'The answer is the first launcher whose rank variable is in env: `"RANK" in env`.',
        "Where ranks fill one node after another, the node's number is rank // local size.",
    ),
)
def rank_from_environment(answer: Answer, rng: Rng) -> Findings:
    """Environments as recorded, with the numbers of a drawn world."""
    # More nodes than two, and each with more ranks than there are nodes, no multiple of them: no number is
    # another one by chance.
    nodes, per_node = rng.choice(((3, 5), (4, 5), (4, 6)))
    seats = launchers.seats_in_blocks(nodes, per_node)
    some = [seats[0], seats[per_node + 1], seats[-1]]
    dealt = launchers.seats_dealt(nodes, per_node)
    cyclic = dealt[1 :: nodes + 1]
    uneven = launchers.seats_of_uneven_nodes(per_node)
    slurms = [
        (launchers.srun, some),
        (launchers.srun, cyclic),
        (launchers.srun_of_uneven_nodes, uneven),
        (launchers.srun_with_pmix, cyclic),
        (launchers.srun_in_a_script, cyclic),
    ]
    yield "srun", (first := places(answer, slurms))
    lenient = not first.passed
    yield "torchrun", places(answer, [(launchers.torchrun, some), (launchers.torchrun, uneven)], lenient)
    # A rank on each node, and one node.
    few = [launchers.seats_in_blocks(nodes, 1)[1], launchers.seats_in_blocks(1, per_node)[1]]
    yield "mpirun", places(answer, [(launchers.mpirun, some), (launchers.mpirun, few)], lenient)
    yield "Horovod", places(answer, [(launchers.horovodrun, some), (launchers.horovodrun, uneven)], lenient)
    nested = (
        launchers.torchrun_by_srun,
        launchers.torchrun_by_mpirun,
        launchers.torchrun_in_a_job,
        launchers.mpirun_in_a_job,
        launchers.horovodrun_in_a_job,
        launchers.horovodrun_by_srun,
    )
    # Who takes what users export for a launcher's has failed the first row.
    exported = (launchers.mpirun_after_exports, launchers.horovodrun_after_exports) * first.passed
    cases = [(launcher, some) for launcher in (*nested, *exported)]
    cases.append((launchers.torchrun_in_each_task, launchers.seats_in_blocks(1, 2)))
    yield "one launcher inside another", (inner := places(answer, cases, lenient))
    yield "no launcher", alone(answer, seats[0], inner.passed, lenient)


def places(answer: Answer, cases: Sequence[tuple[Launcher, list[Seat]]], lenient: bool = False) -> Finding:
    """Passes if the answer finds every seat in the environment that the launcher makes for it.

    lenient: texts for numbers, other names, changes of the environment, and os.environ in its place pass:
    they would be another row's.
    """
    return compare.first_failure(
        _place(answer, launcher(seat), seat.expected, _WORDS[launcher], lenient)
        for launcher, seats in cases
        for seat in seats
    )


def alone(answer: Answer, seat: Seat, exports: bool = True, lenient: bool = False) -> Finding:
    """Passes if a process that no launcher has started is the only one, in a batch script too. exports: also
    where a user has exported MASTER_ADDR and WORLD_SIZE. lenient: see `places`.
    """
    only = Seat(0, 0, 0, 1, 1, 1).expected
    cases = {
        "without any launcher": {"PATH": "/usr/bin", "HOME": "/home/me"},
        "in a batch script itself, outside of srun": launchers.batch_script(seat),
        "in the shell that salloc gives, outside of srun": launchers.salloc(seat),
    }
    if exports:
        cases["in a batch script itself, which exports MASTER_ADDR"] = launchers.exporting_script(seat)
        cases["in a shell that exports MASTER_ADDR and WORLD_SIZE"] = launchers.exporting_shell(seat)
    return compare.first_failure(_place(answer, case, only, words, lenient) for words, case in cases.items())


_WORDS: dict[Launcher, str] = {
    launchers.srun: "under srun",
    launchers.srun_of_uneven_nodes: "under srun --ntasks, of which a node has one more",
    launchers.srun_in_a_script: "under the second srun of a script that exports MASTER_ADDR and much else",
    launchers.srun_with_pmix: "under srun --mpi=pmix",
    launchers.torchrun: "under torchrun",
    launchers.torchrun_by_mpirun: "under torchrun, which mpirun has started on each node",
    launchers.torchrun_by_srun: "under torchrun, which srun has started on each node",
    launchers.torchrun_in_each_task: "under torchrun for itself, as each of twenty tasks of an srun",
    launchers.torchrun_in_a_job: "under torchrun, which a batch script has started itself",
    launchers.mpirun: "under mpirun",
    launchers.mpirun_in_a_job: "under mpirun in a Slurm job",
    launchers.horovodrun: "under horovodrun",
    launchers.horovodrun_in_a_job: "under horovodrun in a Slurm job",
    launchers.mpirun_after_exports: "under mpirun in a shell that exports MASTER_ADDR and much else",
    launchers.horovodrun_after_exports: "under horovodrun in a script that exports MASTER_ADDR and much else",
    launchers.horovodrun_by_srun: "under horovodrun in a shell that srun has started",
}


def _place(
    answer: Answer, environment: Environment, expected: dict[str, int], words: str, lenient: bool = False
) -> Finding:
    try:
        reply = answer.call(drivers.place_of_this_process if lenient else drivers.place, dict(environment))
    except AnswerFailed as failure:
        return raised_in(words, failure)
    seen = reply.place
    if lenient:
        seen = _put_right(seen, expected)
    if reply.changed and not lenient:
        return Finding(False, f"{words}: env is another one afterwards; expected it as it was.")
    if type(seen) is dict and type(seen.get("rank")) is str:
        return Finding(False, f"{words}: the numbers are texts: {seen!r:.120}.")
    finding = compare.equal(seen, expected, f"a process {words}")
    if finding.passed:
        return finding
    own = seen if lenient else answer.call(drivers.place_of_this_process, dict(environment)).place
    if compare.same(own, expected):
        return Finding(False, f"{words}: read env, and not os.environ. {finding.seen}")
    told = ", ".join(f"{name}={value}" for name, value in environment.items() if _TELLING.match(name))
    return Finding(False, f"{finding.seen} It has {told or 'no variable of a launcher'}.")


def _put_right(seen: object, expected: Mapping[str, int]) -> object:
    """What was seen, with numbers for texts, and with the expected names, as far as that can be done."""
    if not isinstance(seen, dict | list | tuple):
        return seen
    named = dict(seen) if isinstance(seen, dict) else dict(zip(expected, seen, strict=False))
    if not expected.keys() <= named.keys() and len(named) == len(expected):
        named = dict(zip(expected, named.values(), strict=True))
    return {name: int(each) if _is_number(each) else each for name, each in named.items() if name in expected}


def _is_number(value: object) -> bool:
    """Whether it is a number as a text."""
    return isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value) is not None


_TELLING = re.compile(
    r"(GROUP_|LOCAL_|CROSS_)?(RANK|WORLD_SIZE)$|GROUP_WORLD_SIZE|MASTER_ADDR|OMPI_|PMIX_RANK|HOROVOD_"
    r"|SLURM_(PROCID|NTASKS|LOCALID|NODEID|STEP_ID|NTASKS_PER_NODE|NNODES|TASKS_PER_NODE)$"
)
"""Variables shown beside a wrong place."""
