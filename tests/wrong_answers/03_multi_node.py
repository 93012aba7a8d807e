"""Mistakes that people make in unit 03."""

import io
import math
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import textwrap
import threading
import time
import warnings
import zipfile
from itertools import product
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from course_lib.runtime.simulator.rank_threads import GRACE_SECONDS
from graders.units.unit_03.stopping import SECONDS
from tests.answers import wrong

# ----------------------------------------------------------------------------------------- expand_hostlist


def _numbers(ranges):
    """Right: the numbers of "001-003,007"."""
    numbers = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        numbers += [f"{n:0{len(first)}}" for n in range(int(first), int(last or first) + 1)]
    return numbers


def _names(text):
    """Right: the names between the commas that stand outside of brackets."""
    return re.findall(r"(?:\[[^\]]*\]|[^,\[])+", text)


def _expanded(text, found=_names, numbers=_numbers):
    """Right, but for how names are found, or the numbers of a bracket."""
    hosts = []
    for name in found(text):
        pieces = re.split(r"\[([^\]]*)\]", name)
        choices = [numbers(piece) if place % 2 else [piece] for place, piece in enumerate(pieces)]
        hosts += ["".join(parts) for parts in product(*choices)]
    return hosts


@wrong("expand_hostlist", fails="plain names")
def a_host_without_a_name(text):
    """An empty text, split by commas, is one empty text."""
    return _expanded(text, found=lambda text: re.split(r",(?![^\[]*\])", text))


@wrong("expand_hostlist", fails="plain names")
def every_host_once(text):
    """A set forgets what comes twice."""
    return list(dict.fromkeys(_expanded(text)))


@wrong("expand_hostlist", fails="plain names")
def a_letter_after_each_comma(text):
    """Splits where a letter follows: but a name may begin with a digit."""
    return _expanded(text, found=lambda text: re.split(r",(?=[a-z])", text) if text else [])


@wrong("expand_hostlist", fails="a range")
def a_tuple_of_hosts(text):
    """Where a list is asked for."""
    return tuple(_expanded(text))


@wrong("expand_hostlist", fails="a range")
def a_text_of_hosts(text):
    """Names in a text, with commas between them."""
    return ",".join(_expanded(text))


@wrong("expand_hostlist", fails="a range")
def in_the_alphabets_order(text):
    """The first host of a list need not be the first one of the cluster."""
    return sorted(_expanded(text))


@wrong("expand_hostlist", fails="a range")
def asks_slurm(text):
    """Works on a cluster only."""
    done = subprocess.run(["scontrol", "show", "hostnames", text], capture_output=True, text=True, check=True)
    return done.stdout.split()


@wrong("expand_hostlist", fails="a range")
def without_the_end(text):
    """range(3, 5) ends before 5."""
    hosts = []
    for name in _names(text):
        prefix, _, rest = name.partition("[")
        if rest:
            first, _, last = rest.rstrip("]").partition("-")
            hosts += [f"{prefix}{n}" for n in range(int(first), int(last or first))]
        else:
            hosts.append(name)
    return hosts


@wrong("expand_hostlist", fails="leading zeros")
def numbers_are_numbers(text):
    """int("007") forgets the zeros."""
    return _expanded(text, numbers=lambda ranges: [str(int(number)) for number in _numbers(ranges)])


@wrong("expand_hostlist", fails="leading zeros")
def always_three_digits(text):
    """Fills up to three digits where there are zeros, as on the cluster that it was tried on."""

    def numbers(ranges):
        found = [(number, "3" if re.match("0[0-9]", ranges) else "1") for number in _numbers(ranges)]
        return [f"{int(number):0{width}}" for number, width in found]

    return _expanded(text, numbers=numbers)


@wrong("expand_hostlist", fails="several in brackets")
def splits_by_every_comma(text):
    """Tears "c101-[001,007]" into "c101-[001" and "007]"."""
    return _expanded(text, found=lambda text: text.split(",") if text else [])


@wrong("expand_hostlist", fails="leading zeros")
def one_width_for_the_bracket(text):
    """Takes the width of the bracket's first number for all of them."""

    def numbers(ranges):
        width = len(re.match(r"\d+", ranges)[0])
        return [f"{int(number):0{width}}" for number in _numbers(ranges)]

    return _expanded(text, numbers=numbers)


@wrong("expand_hostlist", fails="two brackets")
def one_bracket_a_name(text):
    """Looks for one bracket, and loses what follows it."""
    hosts = []
    for name in _names(text):
        prefix, bracket, rest = name.partition("[")
        hosts += [prefix + number for number in _numbers(rest.partition("]")[0])] if bracket else [name]
    return hosts


@wrong("expand_hostlist", fails="two brackets")
def first_counts_fastest(text):
    """Combines the brackets in the wrong order."""
    hosts = []
    for name in _names(text):
        pieces = re.split(r"\[([^\]]*)\]", name)
        choices = [_numbers(piece) if place % 2 else [piece] for place, piece in enumerate(pieces)]
        hosts += ["".join(reversed(parts)) for parts in product(*reversed(choices))]
    return hosts


@wrong("expand_hostlist", fails="two brackets")
def pairs_instead_of_products(text):
    """zip instead of product: the first rack's first node, the second rack's second."""
    hosts = []
    for name in _names(text):
        pieces = re.split(r"\[([^\]]*)\]", name)
        longest = max([len(_numbers(piece)) for piece in pieces[1::2]], default=1)
        choices = [_numbers(piece) if place % 2 else [piece] * longest for place, piece in enumerate(pieces)]
        hosts += ["".join(parts) for parts in zip(*choices, strict=False)]
    return hosts


@wrong("expand_hostlist", fails="two brackets")
def replaces_all_that_are_alike(text):
    """str.replace without a count: of two brackets that are alike both get the number."""
    hosts = _names(text)
    while any("[" in host for host in hosts):
        found = [(host, re.search(r"\[([^\]]*)\]", host)) for host in hosts]
        hosts = [
            host.replace(match[0], number) if match else host
            for host, match in found
            for number in (_numbers(match[1]) if match else [""])
        ]
    return hosts


@wrong("expand_hostlist", fails="plain names")
def a_hyphen_only_before_a_bracket(text):
    """login-1 is a name, too."""
    return _expanded(text, lambda text: re.findall(r"[\w.]+(?:[-\w.]*\[[^\]]*\])*", text))


@wrong("expand_hostlist", fails="leading zeros")
def as_wide_as_the_last(text):
    """08-101 begins with 08, and not with 008."""

    def numbers(ranges):
        found = []
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            width = len(last or first) if first.startswith("0") else 0
            found += [f"{n:0{width}}" for n in range(int(first), int(last or first) + 1)]
        return found

    return _expanded(text, numbers=numbers)


@wrong("expand_hostlist", fails="a range")
def numbers_in_a_column(text):
    """As wide as the last of a range: but the node before node10 is node9."""

    def numbers(ranges):
        pairs = [part.split("-") for part in ranges.split(",")]
        return [f"{n:0{len(pair[-1])}}" for pair in pairs for n in range(int(pair[0]), int(pair[-1]) + 1)]

    return _expanded(text, numbers=numbers)


@wrong("expand_hostlist", fails="two brackets")
def a_text_before_each_bracket(text):
    """n[1-2][3-4] has nothing between its brackets."""
    hosts = []
    for name in _names(text):
        pairs = re.findall(r"([^\[\]]+)(?:\[([^\]]*)\])?", name)
        choices = [[before + n for n in (_numbers(inside) if inside else [""])] for before, inside in pairs]
        hosts += ["".join(parts) for parts in product(*choices)]
    return hosts


@wrong("expand_hostlist", fails="two brackets")
def racks_without_zeros(text):
    """A rack's number may have zeros as a node's has."""
    hosts = []
    for name in _names(text):
        pieces = re.split(r"\[([^\]]*)\]", name)
        choices = [_numbers(piece) if place % 2 else [piece] for place, piece in enumerate(pieces)]
        if len(pieces) > 3:
            choices[1] = [str(int(number)) for number in choices[1]]
        hosts += ["".join(parts) for parts in product(*choices)]
    return hosts


@wrong("expand_hostlist", fails="a range")
def zeros_taken_off(text):
    """Of "0" nothing is left."""

    def numbers(ranges):
        found = []
        for part in ranges.split(","):
            first, dash, last = part.partition("-")
            if dash:
                begin = int(first.lstrip("0"))
                found += [str(n).zfill(len(first)) for n in range(begin, int(last) + 1)]
            else:
                found.append(part)
        return found

    return _expanded(text, numbers=numbers)


@wrong("expand_hostlist", fails="several in brackets")
def every_number_once(text):
    """A number that stands twice in a bracket is a host that comes twice."""
    return _expanded(text, numbers=lambda ranges: list(dict.fromkeys(_numbers(ranges))))


@wrong("expand_hostlist", fails="plain names")
def letters_digits_hyphens(text):
    """So are names of the internet; those of nodes may hold a _ as well."""
    return _expanded(text, found=lambda text: re.findall(r"(?:\[[^\]]*\]|[A-Za-z0-9.-])+", text))


@wrong("expand_hostlist", fails="several in brackets")
def names_in_a_dictionary(text):
    """What stands before a bracket may come twice, as any other name."""
    found = {
        name.partition("[")[0] if "[" in name else place: name for place, name in enumerate(_names(text))
    }
    return [host for name in found.values() for host in _expanded(name)]


@wrong("expand_hostlist", fails="two brackets")
def letters_between_brackets(text):
    """Between two brackets there may be digits."""
    hosts = []
    for name in _names(text):
        two = re.fullmatch(r"([^\[]*)\[([^\]]*)\]([A-Za-z-]*)\[([^\]]*)\]", name)
        if two and name.count("[") == 2:
            numbers = product(_numbers(two[2]), _numbers(two[4]))
            hosts += [f"{two[1]}{first}{two[3]}{second}" for first, second in numbers]
        else:
            hosts += _expanded(name) if name.count("[") < 2 else [name]
    return hosts


# ------------------------------------------------------------------------------------ rank_from_environment


_SLURM = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS")
_TORCHRUN = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE")
_HOROVOD = ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_CROSS_RANK", "HOROVOD_SIZE")
_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "NODE", "OMPI_COMM_WORLD_SIZE")
_RESULT = ("rank", "local_rank", "node_rank", "world_size")
_ALONE = dict(zip(_RESULT, (0, 0, 0, 1), strict=True))


def _with_node(env):
    """Right: Open MPI's environment with the number of the node."""
    local_size = int(env.get("OMPI_COMM_WORLD_LOCAL_SIZE", 1))
    return env | {"NODE": str(int(env.get("OMPI_COMM_WORLD_RANK", 0)) // local_size)}


def _read(env, names):
    return {key: int(env[name]) for key, name in zip(_RESULT, names, strict=True)}


def _first(env, launchers):
    """The place that the first launcher of the list gives whose rank variable is there."""
    found = next((names for names in launchers if names[0] in env), None)
    return _read(env, found) if found else _ALONE


def _in_order(env, torchrun=_TORCHRUN, horovod=_HOROVOD, mpi=_MPI):
    """Right: the innermost launcher's place. Of a launcher other names may be read."""
    slurm = _SLURM if "SLURM_STEP_ID" in env else ("", "", "", "")
    return _first(_with_node(env), (torchrun, horovod, mpi, slurm))


@wrong("rank_from_environment", fails="srun")
def texts_instead_of_numbers(env):
    """Environment variables are texts; "10" < "9"."""
    for names in (_TORCHRUN, _HOROVOD, _MPI, _SLURM):
        if names[0] in env:
            return {key: _with_node(env)[name] for key, name in zip(_RESULT, names, strict=True)}
    return _ALONE


@wrong("rank_from_environment", fails="srun")
def local_rank_by_division(env):
    """Takes for granted that srun fills one node after another."""
    place = _in_order(env)
    if "SLURM_STEP_ID" in env and not {"RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK"} & set(env):
        each = place["world_size"] // int(env["SLURM_NNODES"])
        place["node_rank"], place["local_rank"] = divmod(place["rank"], each)
    return place


@wrong("rank_from_environment", fails="srun")
def only_the_shared_names(env):
    """srun gives no RANK; somebody's own script did, where it was tried."""
    return _first(_with_node(env), (_TORCHRUN, _HOROVOD, _MPI))


@wrong("rank_from_environment", fails="srun")
def asks_the_library(env):
    """Leaves it to the course's own code."""
    from course_lib.runtime.processes.rank_environment import _rank_info

    info = _rank_info(env)
    return dict(zip(_RESULT, (info.rank, info.local_rank, info.node, info.ranks), strict=True))


@wrong("rank_from_environment", fails="srun")
def takes_the_variables_out(env):
    """Whoever reads the environment after it finds nothing."""
    place = _first(_with_node(env), (_TORCHRUN, _HOROVOD, _MPI, _SLURM))
    env.clear()
    return place


@wrong("rank_from_environment", fails="torchrun")
def role_for_node(env):
    """ROLE_RANK is no node's number."""
    return _in_order(env, torchrun=("RANK", "LOCAL_RANK", "ROLE_RANK", "WORLD_SIZE"))


@wrong("rank_from_environment", fails="mpirun")
def all_slots_for_all_ranks(env):
    """Open MPI's universe is where processes could run, not how many do."""
    return _in_order(env, mpi=(*_MPI[:3], "OMPI_UNIVERSE_SIZE"))


@wrong("rank_from_environment", fails="mpirun")
def node_rank_of_open_mpi(env):
    """OMPI_COMM_WORLD_NODE_RANK sounds like it, but counts processes on a node."""
    return _in_order(env, mpi=(*_MPI[:2], "OMPI_COMM_WORLD_NODE_RANK", _MPI[3]))


@wrong("rank_from_environment", fails="mpirun")
def node_by_remainder(env):
    """% for //: the local rank once more."""
    place = _in_order(env)
    if "OMPI_COMM_WORLD_RANK" in env and "RANK" not in env:
        place["node_rank"] = place["rank"] % int(env["OMPI_COMM_WORLD_LOCAL_SIZE"])
    return place


@wrong("rank_from_environment", fails="Horovod")
def cross_size_for_cross_rank(env):
    """Confounds the node's number with how many there are."""
    return _in_order(
        env, horovod=("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_CROSS_SIZE", "HOROVOD_SIZE")
    )


@wrong("rank_from_environment", fails="one launcher inside another")
def outermost_first(env):
    """Asks for Slurm's variables first: each torchrun's workers think that they are one."""
    slurm = _SLURM if "SLURM_STEP_ID" in env else ("", "", "", "")
    return _first(_with_node(env), (slurm, _TORCHRUN, _HOROVOD, _MPI))


@wrong("rank_from_environment", fails="srun")
def pmix_is_open_mpi(env):
    """srun --mpi=pmix sets PMIX_RANK too."""
    if "PMIX_RANK" in env and "RANK" not in env:
        return _read(_with_node(env), _MPI)
    slurm = _SLURM if "SLURM_STEP_ID" in env else ("", "", "", "")
    return _first(env, (_TORCHRUN, _HOROVOD, slurm))


@wrong("rank_from_environment", fails="srun")
def four_numbers(env):
    """In the right order, and without their names."""
    return list(_in_order(env).values())


@wrong("rank_from_environment", fails="srun")
def names_of_its_own(env):
    """Whoever asks for "world_size" does not find "size"."""
    return dict(zip(("rank", "local_rank", "node", "size"), _in_order(env).values(), strict=True))


@wrong("rank_from_environment", fails="srun")
def the_launcher_too(env):
    """One thing more than was asked for."""
    return _in_order(env) | {"launched": int("SLURM_STEP_ID" in env)}


@wrong("rank_from_environment", fails="one launcher inside another")
def horovod_last(env):
    """What horovodrun is told about itself may come from a shell that srun has started."""
    slurm = _SLURM if "SLURM_STEP_ID" in env else ("", "", "", "")
    return _first(_with_node(env), (_TORCHRUN, _MPI, slurm, _HOROVOD))


@wrong("rank_from_environment", fails="one launcher inside another")
def mpirun_before_torchrun(env):
    """Slurm's names last, and the others in the order of an alphabet."""
    slurm = _SLURM if "SLURM_STEP_ID" in env else ("", "", "", "")
    return _first(_with_node(env), (_HOROVOD, _MPI, _TORCHRUN, slurm))


@wrong("rank_from_environment", fails="no launcher")
def the_batch_script_is_a_rank(env):
    """Takes a batch script's shell for rank 0 of all tasks, which then waits for the others for ever."""
    return _first(_with_node(env), (_TORCHRUN, _HOROVOD, _MPI, _SLURM))


@wrong("rank_from_environment", fails="no launcher")
def needs_a_launcher(env):
    """Fails with a KeyError where nobody has started it."""
    return _read(
        _with_node(env),
        next(names for names in (_TORCHRUN, _HOROVOD, _MPI, _SLURM) if names[0] in env),
    )


@wrong("rank_from_environment", fails="torchrun")
def all_nodes_are_alike(env):
    """One node may have more ranks than another."""
    place = _first(_with_node(env), (_TORCHRUN, _HOROVOD, _MPI, _SLURM if "SLURM_STEP_ID" in env else [""]))
    if "RANK" in env:
        place["node_rank"] = place["rank"] // int(env["LOCAL_WORLD_SIZE"])
    return place


@wrong("rank_from_environment", fails="torchrun")
def nodes_before_it_are_like_its_own(env):
    """The ranks on the nodes before it, divided by how many its own node has."""
    place = _in_order(env)
    if "RANK" in env:
        place["node_rank"] = (place["rank"] - place["local_rank"]) // int(env["LOCAL_WORLD_SIZE"])
    return place


@wrong("rank_from_environment", fails="srun")
def its_own_environment(env):
    """Reads os.environ, and not what it is given."""
    return _in_order(dict(os.environ))


@wrong("rank_from_environment", fails="one launcher inside another")
def no_step_no_rank(env):
    """On the first node mpirun's ranks inherit from the batch script, which is no step."""
    if "SLURM_JOB_ID" in env and not {"SLURM_STEP_ID", "RANK", "HOROVOD_RANK"} & set(env):
        return _ALONE
    return _first(_with_node(env), (_TORCHRUN, _HOROVOD, _MPI, _SLURM if "SLURM_STEP_ID" in env else [""]))


@wrong("rank_from_environment", fails="one launcher inside another")
def a_script_before_torchrun(env):
    """torchrun may be started by the batch script itself."""
    if "SLURM_JOB_ID" in env and not {"SLURM_STEP_ID", "OMPI_COMM_WORLD_RANK", "HOROVOD_RANK"} & set(env):
        return _ALONE
    return _first(_with_node(env), (_TORCHRUN, _HOROVOD, _MPI, _SLURM if "SLURM_STEP_ID" in env else [""]))


@wrong("rank_from_environment", fails="Horovod")
def horovods_nodes_are_alike(env):
    """What is so with mpirun need not be so with horovodrun -H node1:4,node2:3."""
    place = _in_order(env)
    if "HOROVOD_RANK" in env and "RANK" not in env:
        place["node_rank"] = place["rank"] // int(env["HOROVOD_LOCAL_SIZE"])
    return place


@wrong("rank_from_environment", fails="srun")
def a_meeting_place_is_torchruns(env):
    """A script that starts its ranks by srun exports MASTER_ADDR itself."""
    return _read(env, _TORCHRUN) if "MASTER_ADDR" in env else _in_order(env)


@wrong("rank_from_environment", fails="srun")
def a_world_is_torchruns(env):
    """Many a script exports WORLD_SIZE, too."""
    return _read(env, _TORCHRUN) if "WORLD_SIZE" in env else _in_order(env)


@wrong("rank_from_environment", fails="srun")
def any_name_of_open_mpi(env):
    """OMPI_MCA_btl is a user's, and may stay in the environment of a task that srun has started."""
    if any(name.startswith("OMPI_") for name in env) and not {"RANK", "HOROVOD_RANK"} & set(env):
        return _read(_with_node(env), _MPI)
    return _in_order(env)


@wrong("rank_from_environment", fails="srun")
def any_name_of_horovod(env):
    """HOROVOD_FUSION_THRESHOLD is a user's."""
    if any(name.startswith("HOROVOD_") for name in env) and "RANK" not in env:
        return _read(env, _HOROVOD)
    return _in_order(env)


@wrong("rank_from_environment", fails="mpirun")
def a_meeting_place_for_one(env):
    """The script that exports MASTER_ADDR goes nowhere itself."""
    if "MASTER_ADDR" in env and not {"RANK", "SLURM_STEP_ID"} & set(env):
        return _read(env, _TORCHRUN)
    return _in_order(env)


@wrong("rank_from_environment", fails="srun")
def the_first_step(env):
    """Whatever the script has started before by srun was step 0."""
    return _in_order({k: v for k, v in env.items() if k != "SLURM_STEP_ID" or v == "0"})


@wrong("rank_from_environment", fails="srun")
def tasks_by_nodes(env):
    """Four tasks on two nodes may be three and one."""
    place = _in_order(env)
    if "SLURM_STEP_ID" in env and not {"RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK"} & set(env):
        each = int(env["SLURM_STEP_TASKS_PER_NODE"].split("(")[0].split(",")[0])
        place["world_size"] = each * int(env["SLURM_NNODES"])
    return place


@wrong("rank_from_environment", fails="no launcher")
def a_job_has_tasks(env):
    """The shell that salloc gives is in a job, and is no task of it."""
    if {"RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK"} & set(env) or "SLURM_JOB_ID" not in env:
        return _in_order(env)
    return _ALONE if int(env["SLURM_PROCID"]) == 0 and "SLURM_STEP_ID" not in env else _read(env, _SLURM)


@wrong("rank_from_environment", fails="mpirun")
def nodes_in_turn(env):
    """As if mpirun dealt ranks to the nodes in turn."""
    mpi = _with_node(env)
    nodes = int(env.get("OMPI_COMM_WORLD_SIZE", 1)) // int(env.get("OMPI_COMM_WORLD_LOCAL_SIZE", 1))
    mpi["NODE"] = str(int(env.get("OMPI_COMM_WORLD_RANK", 0)) % nodes)
    slurm = _SLURM if "SLURM_STEP_ID" in env else ("", "", "", "")
    return _first(mpi, (_TORCHRUN, _HOROVOD, _MPI, slurm))


@wrong("rank_from_environment", fails="srun")
def each_number_for_itself(env):
    """The first variable of each kind: a user's WORLD_SIZE is taken for srun's."""
    place = _in_order(env)
    sizes = [env[names[3]] for names in (_TORCHRUN, _HOROVOD, _MPI) if names[3] in env]
    return place | {"world_size": int(sizes[0])} if sizes and place != _ALONE else place


@wrong("rank_from_environment", fails="mpirun")
def a_world_outside_of_jobs(env):
    """Who exports WORLD_SIZE may also start mpirun."""
    if "WORLD_SIZE" in env and "SLURM_JOB_ID" not in env:
        return {key: int(env.get(name, 0)) for key, name in zip(_RESULT, _TORCHRUN, strict=True)}
    return _in_order(env)


@wrong("rank_from_environment", fails="one launcher inside another")
def slurms_nodes_for_torchruns(env):
    """torchrun's agents agree on an order of their own."""
    place = _in_order(env)
    return place | {"node_rank": int(env["SLURM_NODEID"])} if {"RANK", "SLURM_STEP_ID"} <= set(env) else place


@wrong("rank_from_environment", fails="no launcher")
def torchruns_or_nothing(env):
    """Outside of a job with defaults for what torchrun has not set, of which a user has set one."""
    if {"SLURM_JOB_ID", "OMPI_COMM_WORLD_RANK", "HOROVOD_RANK"} & set(env):
        return _in_order(env)
    return {key: int(env.get(name, _ALONE[key])) for key, name in zip(_RESULT, _TORCHRUN, strict=True)}


# ------------------------------------------------------------------------------------------ form_to_script


def _filled(form):
    """Right: the form without empty fields, with its defaults."""
    typed = {name: text for name, text in form.items() if text}
    return {"Nodes": "1", "Tasks": typed.get("Nodes", "1"), "Time Limit": "2:0:0"} | typed


def _asked(field):
    """Right: the options for what stands in the fields."""
    options = {
        "--partition": field["Queue"],
        "--nodes": field["Nodes"],
        "--ntasks": field["Tasks"],
        "--time": field["Time Limit"],
        "--account": field.get("Project"),
        "--reservation": field.get("Reservation"),
        "--job-name": field.get("Job Name"),
    }
    return {option: value for option, value in options.items() if value}


def _script(options):
    """Right: the script with these options."""
    lines = [f"#SBATCH {option}={shlex.quote(value)}" for option, value in options.items()]
    return "\n".join(["#!/bin/bash", *lines, "jupyter lab --no-browser"])


def _number(text):
    """Right: the whole number, 0 if there is none."""
    return int(text) if re.fullmatch(r"\d+", text) else 0


def _seconds(text):
    """Right: of hours:minutes:seconds, 0 if it is none."""
    parts = text.split(":")
    right = len(parts) == 3 and all(re.fullmatch(r"\d+", part) for part in parts)
    right = right and all(int(part) < 60 for part in parts[1:])
    return sum(int(part) * unit for part, unit in zip(parts, (3600, 60, 1), strict=True)) if right else 0


def _mistakes(field, queues):
    """Right: each mistake in a sentence."""
    system, queue = field.get("System"), field.get("Queue")
    limits = queues.get(system, {}).get(queue, {"nodes": 10**9, "hours": 10**9})
    nodes, seconds = _number(field["Nodes"]), _seconds(field["Time Limit"])
    if system not in queues:
        yield "System: there is no such"
    elif queue not in queues[system]:
        yield "Queue: not on this system"
    if not 1 <= nodes <= limits["nodes"]:
        yield f"Nodes: 1 to {limits['nodes']}"
    if _number(field["Tasks"]) < max(1, nodes):
        yield "Tasks: at least one a node"
    if len(field.get("Job Name", "")) > 20:
        yield "Job Name: at most 20 characters"
    if not 0 < seconds <= 3600 * limits["hours"]:
        yield f"Time Limit: hours:minutes:seconds, at most {limits['hours']} hours"


def _judged(form, queues):
    """Right: the filled form, if there is no mistake in it."""
    field = _filled(form)
    if mistakes := list(_mistakes(field, queues)):
        raise ValueError("; ".join(mistakes))
    return field


def _unless(mistakes, field):
    """Right: the script of the fields, or an error that names all mistakes."""
    if mistakes:
        raise ValueError("; ".join(mistakes))
    return _script(_asked(field))


@wrong("form_to_script", fails="what is asked for")
def options_after_a_module(form, queues):
    """sbatch reads no further than the first command."""
    first, *options, last = _script(_asked(_judged(form, queues))).splitlines()
    return "\n".join([first, "module load python3", *options, last])


@wrong("form_to_script", fails="what is asked for")
def asks_for_gpus(form, queues):
    """TACC's queues have whole nodes, and refuse --gres."""
    return _script(_asked(_judged(form, queues)) | {"--gres": "gpu:4"})


@wrong("form_to_script", fails="what is asked for")
def without_an_interpreter(form, queues):
    """sbatch refuses what does not begin with #!."""
    return _script(_asked(_judged(form, queues))).partition("\n")[2]


@wrong("form_to_script", fails="what is asked for")
def starts_nothing(form, queues):
    """A job that ends at once."""
    return _script(_asked(_judged(form, queues))).rpartition("\n")[0] + "\n"


@wrong("form_to_script", fails="what is asked for")
def prints_it(form, queues):
    """Shows the script, and returns nothing."""
    print(_script(_asked(_judged(form, queues))))


@wrong("form_to_script", fails="what is asked for")
def tasks_of_a_node(form, queues):
    """Tasks are altogether, --ntasks-per-node are of a node."""
    asked = _asked(_judged(form, queues))
    return _script({"--ntasks-per-node" if name == "--ntasks" else name: asked[name] for name in asked})


@wrong("form_to_script", fails="a name of two words")
def name_not_quoted(form, queues):
    """For sbatch a second word is another argument."""
    return _script(_asked(_judged(form, queues))).replace("'", "")


@wrong("form_to_script", fails="a name of two words")
def counts_the_quotes(form, queues):
    """20 characters are allowed, and the quotes are not the name's."""
    field = _filled(form)
    quoted = {"Job Name": shlex.quote(field["Job Name"])} if "Job Name" in field else {}
    return _unless(list(_mistakes(field | quoted, queues)), field)


@wrong("form_to_script", fails="a name of two words")
def quotes_by_hand(form, queues):
    """A name may have a quote of this kind itself."""
    asked = _asked(_judged(form, queues))
    name = asked.pop("--job-name", "")
    line = f"#SBATCH --job-name='{name}'\n" if name else ""
    return _script(asked).replace("#SBATCH", f"{line}#SBATCH", 1)


@wrong("form_to_script", fails="a name of two words")
def only_the_name_in_quotes(form, queues):
    """Any value that has blanks is quoted."""
    asked = _asked(_judged(form, queues))
    name = {"--job-name": shlex.quote(asked["--job-name"])} if "--job-name" in asked else {}
    lines = [f"#SBATCH {option}={value}\n" for option, value in (asked | name).items()]
    return f"#!/bin/bash\n{''.join(lines)}\njupyter lab --no-browser\n"


@wrong("form_to_script", fails="what is asked for")
def a_reservation_is_a_queue(form, queues):
    """Nodes that are kept free are asked for by --reservation."""
    asked = _asked(_judged(form, queues))
    return _script(asked | ({"--partition": asked.pop("--reservation")} if "--reservation" in asked else {}))


@wrong("form_to_script", fails="what is asked for")
def hours_only(form, queues):
    """For Slurm a single number is minutes."""
    field = _judged(form, queues)
    return _script(_asked(field | {"Time Limit": field["Time Limit"].partition(":")[0]}))


@wrong("form_to_script", fails="what is asked for")
def below_the_limit(form, queues):
    """What is at the limit is allowed."""
    field = _filled(form)
    mistakes = list(_mistakes(field, queues))
    nodes = queues.get(field.get("System"), {}).get(field.get("Queue"), {}).get("nodes")
    if _number(field["Nodes"]) == nodes:
        mistakes.append(f"Nodes: at most {nodes}")
    return _unless(mistakes, field)


@wrong("form_to_script", fails="what is asked for")
def nineteen_characters(form, queues):
    """20 characters are allowed."""
    field = _filled(form)
    mistakes = list(_mistakes(field, queues))
    if len(field.get("Job Name", "")) == 20:
        mistakes.append("Job Name: at most 20 characters")
    return _unless(mistakes, field)


@wrong("form_to_script", fails="what is asked for")
def another_application(form, queues):
    """Whatever the application is called, Jupyter is started."""
    script = _script(_asked(_judged(form, queues)))
    return (
        script
        if "Jupyter" in form.get("Application", "")
        else script.replace("jupyter lab --no-browser", "xterm")
    )


@wrong("form_to_script", fails="what is asked for")
def a_desktop_is_too_much(form, queues):
    """The VNC field does not matter."""
    if form.get("VNC Desktop Resolution"):
        raise ValueError("VNC Desktop Resolution: there is none")
    return _script(_asked(_judged(form, queues)))


@wrong("form_to_script", fails="what is asked for")
def clears_the_form(form, queues):
    """The caller still has that form."""
    script = _script(_asked(_judged(form, queues)))
    for name in [name for name, text in form.items() if not text]:
        del form[name]
    return script


@wrong("form_to_script", fails="defaults")
def as_many_nodes_as_tasks(form, queues):
    """Without a number of nodes it is one node, however many tasks."""
    return _script(
        _asked(_judged(form if form.get("Nodes") else {**form, "Nodes": form.get("Tasks", "1")}, queues))
    )


@wrong("form_to_script", fails="defaults")
def missing_but_not_empty(form, queues):
    """dict.get has a default for what is missing only."""
    field = _filled(form) | {name: text for name, text in form.items() if name in ("Nodes", "Time Limit")}
    if mistakes := list(_mistakes(field, queues)):
        raise ValueError("; ".join(mistakes))
    return _script(_asked(field))


@wrong("form_to_script", fails="defaults")
def every_field_is_there(form, queues):
    """A form may leave fields out."""
    form["Reservation"], form["Time Limit"], form["Nodes"]
    return _script(_asked(_judged(form, queues)))


@wrong("form_to_script", fails="defaults")
def one_task(form, queues):
    """One task by default, for more nodes too."""
    return _script(_asked(_judged({**form, "Tasks": form.get("Tasks") or "1"}, queues)))


@wrong("form_to_script", fails="defaults")
def empty_options(form, queues):
    """--account= is an account without a name."""
    field = _judged(form, queues)
    return _script({"--account": field.get("Project", ""), **_asked(field)})


@wrong("form_to_script", fails="defaults")
def two_minutes(form, queues):
    """2:0 is two minutes."""
    field = _judged(form, queues)
    return _script(_asked(field | ({} if form.get("Time Limit") else {"Time Limit": "2:0"})))


@wrong("form_to_script", fails="what is asked for")
def a_name_of_its_own(form, queues):
    """Nobody has asked for the name."""
    field = _judged(form, queues)
    return _script({"--job-name": "tap_jupyter", **_asked(field)})


@wrong("form_to_script", fails="limits")
def believes_the_form(form, queues):
    """sbatch will say it, in an hour."""
    return _script(_asked(_filled(form)))


def _but(form, queues, *overlooked):
    """Right, but for mistakes of which it does not know: those that begin so."""
    field = _filled(form)
    if mistakes := [each for each in _mistakes(field, queues) if not each.startswith(overlooked)]:
        raise ValueError("; ".join(mistakes))
    return _script(_asked(field))


@wrong("form_to_script", fails="limits")
def any_number_of_tasks(form, queues):
    """Two nodes cannot share a task."""
    return _but(form, queues, "Tasks")


@wrong("form_to_script", fails="limits")
def any_name(form, queues):
    """The form takes 20 characters."""
    return _but(form, queues, "Job Name")


@wrong("form_to_script", fails="limits")
def any_time(form, queues):
    """However long."""
    return _but(form, queues, "Time Limit")


@wrong("form_to_script", fails="limits")
def queues_of_all_systems(form, queues):
    """A queue of another system is none."""
    everywhere = {name: limits for own in queues.values() for name, limits in own.items()}
    return _script(_asked(_judged(form, dict.fromkeys(queues, everywhere))))


@wrong("form_to_script", fails="limits")
def compares_hours(form, queues):
    """Minutes and seconds come on top of the hours."""
    field = _filled(form)
    whole = re.sub(r"^(0*[1-9]\d*):\d+:\d+$", r"\1:0:0", field["Time Limit"])
    if mistakes := list(_mistakes(field | {"Time Limit": whole}, queues)):
        raise ValueError("; ".join(mistakes))
    return _script(_asked(field))


@wrong("form_to_script", fails="limits")
def ninety_minutes(form, queues):
    """60 minutes are an hour."""
    field = _filled(form)
    hours, *rest = field["Time Limit"].split(":")
    within = all(_number(part) < 100 for part in rest) and len(rest) == 2
    if within and any(_number(part) > 59 for part in rest):
        field["Time Limit"] = f"{hours}:1:0"
    if mistakes := list(_mistakes(field, queues)):
        raise ValueError("; ".join(mistakes))
    return _script(_asked(field | {"Time Limit": _filled(form)["Time Limit"]}))


@wrong("form_to_script", fails="limits")
def slurms_times(form, queues):
    """01:30 is a minute and a half for Slurm, and nothing for the form."""
    field = _filled(form)
    return _script(
        _asked(_judged({**form, "Time Limit": ":".join(["0", *field["Time Limit"].split(":")][-3:])}, queues))
    )


@wrong("form_to_script", fails="limits")
def by_assertions(form, queues):
    """An AssertionError is for programmers, and python -O makes none."""
    mistakes = list(_mistakes(_filled(form), queues))
    assert not mistakes, mistakes
    return _script(_asked(_filled(form)))


@wrong("form_to_script", fails="limits")
def says_no(form, queues):
    """Not what is wrong."""
    if list(_mistakes(_filled(form), queues)):
        raise ValueError("This form cannot be submitted.")
    return _script(_asked(_filled(form)))


@wrong("form_to_script", fails="limits")
def without_the_limit(form, queues):
    """Too many: and how many are allowed?"""
    if mistakes := list(_mistakes(_filled(form), queues)):
        raise ValueError(", ".join(each.partition(":")[0] for each in mistakes))
    return _script(_asked(_filled(form)))


@wrong("form_to_script", fails="limits")
def suspects_all(form, queues):
    """A message that always names everything says nothing."""
    if mistakes := list(_mistakes(_filled(form), queues)):
        raise ValueError(f"{'; '.join(mistakes)}. Look at Nodes, Tasks, Job Name and Time Limit again.")
    return _script(_asked(_filled(form)))


@wrong("form_to_script", fails="limits")
def a_queue_is_always_named(form, queues):
    """A field may be missing: KeyError says nothing to who fills in a form."""
    assert form["Queue"] is not None
    return _script(_asked(_judged(form, queues)))


@wrong("form_to_script", fails="limits")
def limits_what_was_typed(form, queues):
    """The default is longer than some queues allow."""
    return _but(form, queues, *(() if form.get("Time Limit") else ("Time Limit",)))


@wrong("form_to_script", fails="limits")
def limits_by_the_queues_name(form, queues):
    """Queues of two systems may have one name, and other limits."""
    everywhere = {name: limits for system in queues.values() for name, limits in system.items()}
    return _script(
        _asked(_judged(form, {name: {q: everywhere[q] for q in own} for name, own in queues.items()}))
    )


@wrong("form_to_script", fails="what is asked for")
def two_digits_of_all(form, queues):
    """Hours, minutes and seconds may have one digit."""
    field = _filled(form)
    mistakes = list(_mistakes(field, queues))
    if re.search(r"(^|:)\d(:|$)", field["Time Limit"]):
        mistakes.append("Time Limit: hours:minutes:seconds")
    return _unless(mistakes, field)


@wrong("form_to_script", fails="limits")
def ints_own_error(form, queues):
    """Of a time that has no numbers int says so, and not which field it is."""
    for part in form.get("Time Limit", "").split(":"):
        int(part or 0)
    return _script(_asked(_judged(form, queues)))


@wrong("form_to_script", fails="every mistake is named")
def the_queue_first(form, queues):
    """What can be judged without the queue waits until there is one."""
    field = _filled(form)
    mistakes = list(_mistakes(field, queues))
    unknown = [each for each in mistakes if each.startswith(("System", "Queue"))]
    if mistakes:
        raise ValueError("; ".join(unknown or mistakes))
    return _script(_asked(field))


@wrong("form_to_script", fails="every mistake is named")
def the_first_mistake(form, queues):
    """The next one comes to light at the next attempt."""
    for mistake in _mistakes(_filled(form), queues):
        raise ValueError(mistake)
    return _script(_asked(_filled(form)))


@wrong("form_to_script", fails="every mistake is named")
def system_first(form, queues):
    """Without a system it does not look any further."""
    if form.get("System") not in queues:
        raise ValueError(f"System: one of {sorted(queues)}")
    return _script(_asked(_judged(form, queues)))


@wrong("form_to_script", fails="what is asked for")
def two_digits_of_hours(form, queues):
    """A hundred hours have three."""
    field = _filled(form)
    mistakes = list(_mistakes(field, queues))
    if re.match(r"\d{3}", field["Time Limit"]):
        mistakes.append("Time Limit: hours:minutes:seconds")
    return _unless(mistakes, field)


@wrong("form_to_script", fails="what is asked for")
def hours_of_a_day(form, queues):
    """strptime reads the time of a clock: %H ends at 23."""
    field = _filled(form)
    mistakes = list(_mistakes(field, queues))
    if re.match(r"(2[4-9]|[3-9]\d|\d{3})", field["Time Limit"]):
        mistakes = [each for each in mistakes if not each.startswith("Time Limit")]
        mistakes.append("Time Limit: hours:minutes:seconds")
    return _unless(mistakes, field)


def _judged_by(form, queues, seconds):
    """Right, but for how a time is read: seconds(its parts), of texts that are all numbers."""
    field = _filled(form)
    try:
        parts = [int(part) for part in field["Time Limit"].split(":")]
    except ValueError:
        parts = []
    mistakes = [each for each in _mistakes(field, queues) if not each.startswith("Time Limit")]
    hours = queues.get(field.get("System"), {}).get(field.get("Queue"), {"hours": 10**9})["hours"]
    if not 0 < seconds(parts) <= 3600 * hours:
        mistakes.append(f"Time Limit: at most {hours} hours")
    return _unless(mistakes, field)


@wrong("form_to_script", fails="limits")
def letters_are_less_than_nothing(form, queues):
    """A thousand seconds less for what is no number: an hour is more than that."""
    field = _filled(form)
    parts = [int(part) if part.isdigit() else -1000 for part in field["Time Limit"].split(":")]
    times = ":".join(str(max(0, part)) for part in parts)
    total = 3600 * parts[0] + 60 * parts[1] + parts[2] if len(parts) == 3 else 0
    return _script(_asked(_judged(form | {"Time Limit": times} if total > 0 else form, queues)))


@wrong("form_to_script", fails="limits")
def the_first_three_parts(form, queues):
    """0:1:0:0 might have days in it."""

    def seconds(parts):
        if len(parts) < 3 or min(parts) < 0 or max(parts[1:]) >= 60:
            return 0
        return 3600 * parts[0] + 60 * parts[1] + parts[2]

    return _judged_by(form, queues, seconds)


@wrong("form_to_script", fails="every mistake is named")
def one_limit_of_the_queue(form, queues):
    """Too many nodes, and for too long as well."""
    field = _filled(form)
    mistakes = list(_mistakes(field, queues))
    limits = queues.get(field.get("System"), {}).get(field.get("Queue"), {"nodes": 10**9})
    if _number(field["Nodes"]) > limits["nodes"]:
        mistakes = [each for each in mistakes if not each.startswith("Time Limit")]
    return _unless(mistakes, field)


@wrong("form_to_script", fails="what is asked for")
def without_the_seconds(form, queues):
    """A second is above zero, and a second more than the queue's hours is too long."""
    return _judged_by(
        form,
        queues,
        lambda parts: (
            3600 * parts[0] + 60 * parts[1]
            if len(parts) == 3 and min(parts) >= 0 and max(parts[1:]) < 60
            else 0
        ),
    )


@wrong("form_to_script", fails="what is asked for")
def an_hour_at_least(form, queues):
    """Above zero is a second, too."""
    time_limit = form.get("Time Limit") or "2:0:0"
    if _seconds(time_limit) and _seconds(time_limit) < 3600:
        raise ValueError("Time Limit: above zero")
    return _script(_asked(_judged(form, queues)))


@wrong("form_to_script", fails="what is asked for")
def compares_texts(form, queues):
    """As texts 100 tasks are fewer than 24 nodes."""
    field = _filled(form)
    mistakes = [each for each in _mistakes(field, queues) if not each.startswith("Tasks")]
    if field["Tasks"] < field["Nodes"] or _number(field["Tasks"]) < 1:
        mistakes.append("Tasks: at least one a node")
    return _unless(mistakes, field)


@wrong("form_to_script", fails="limits")
def zero_is_nothing(form, queues):
    """`int(text or 0) or nodes` takes 0 tasks for none typed in."""
    tasks = form.get("Tasks", "")
    return _script(_asked(_judged({**form, "Tasks": tasks if tasks != "0" else ""}, queues)))


@wrong("form_to_script", fails="limits")
def what_int_reads(form, queues):
    """int() reads a sign, too, which is no digit."""
    signed = {name: form[name].removeprefix("+") for name in ("Nodes", "Tasks") if name in form}
    return _script(_asked(_judged({**form, **signed}, queues)))


@wrong("form_to_script", fails="limits")
def zero_in_one_way(form, queues):
    """0:0:0 is 00:00:00 as well."""
    field = _filled(form)
    mistakes = list(_mistakes(field, queues))
    if field["Time Limit"] == "00:00:00":
        mistakes = [each for each in mistakes if not each.startswith("Time Limit")]
    return _unless(mistakes, field)


@wrong("form_to_script", fails="every mistake is named")
def nodes_or_tasks(form, queues):
    """`elif`: where there are too many nodes, it does not look at the tasks."""
    field = _filled(form)
    mistakes = list(_mistakes(field, queues))
    if any(each.startswith("Nodes") for each in mistakes) and _number(field["Tasks"]) > 0:
        mistakes = [each for each in mistakes if not each.startswith("Tasks")]
    return _unless(mistakes, field)


@wrong("form_to_script", fails="every mistake is named")
def nodes_of_a_system(form, queues):
    """ "two" is no number, whatever the system."""
    field = _filled(form)
    mistakes = list(_mistakes(field, queues))
    if field.get("System") not in queues:
        mistakes = [each for each in mistakes if not each.startswith(("Nodes", "Tasks"))]
    return _unless(mistakes, field)


@wrong("form_to_script", fails="every mistake is named")
def times_of_a_queue(form, queues):
    """01:30 is no time, whatever the queue."""
    field = _filled(form)
    mistakes = list(_mistakes(field, queues))
    if any(each.startswith("Queue") for each in mistakes):
        mistakes = [each for each in mistakes if not each.startswith("Time Limit")]
    return _unless(mistakes, field)


@wrong("form_to_script", fails="limits")
def tasks_of_so_many_nodes_as_two(form, queues):
    """Where Nodes are no number, nothing is wrong with 1 task."""
    field = _filled(form)
    mistakes = list(_mistakes(field, queues))
    if _number(field["Nodes"]) < 1 and not any(each.startswith("Tasks") for each in mistakes):
        mistakes.append("Tasks: fewer than there are")
    return _unless(mistakes, field)


@wrong("form_to_script", fails="limits")
def below_sixty(form, queues):
    """-5 is below 60, too; an hour less five minutes is no time for a form."""

    def seconds(parts):
        below = len(parts) == 3 and max(parts[1:]) < 60
        return 3600 * parts[0] + 60 * parts[1] + parts[2] if below else 0

    return _judged_by(form, queues, seconds)


@wrong("form_to_script", fails="what is asked for")
def in_minutes(form, queues):
    """Slurm takes whole minutes, and 59 seconds are lost."""
    field = _judged(form, queues)
    return _script(_asked(field | {"Time Limit": str(max(1, _seconds(field["Time Limit"]) // 60))}))


@wrong("form_to_script", fails="defaults")
def all_options_always(form, queues):
    """A text with gaps to be filled in, of which some stay empty."""
    field = _judged(form, queues)
    gaps = ("--job-name", "--account", "--reservation")
    empty = [f"#SBATCH {option}=" for option in gaps if option not in _asked(field)]
    return "\n".join(["#!/bin/bash", *empty, *_script(_asked(field)).splitlines()[1:]])


# --------------------------------------------------------------------------------------- container_command


def _modules(site):
    """Right: the lines that load exactly the site's modules."""
    return ["module purge", f"module load {' '.join(site['modules'])}"] if site["modules"] else []


def _gpus(site):
    """Right: the option for the site's GPUs."""
    return {"NVIDIA": ["--nv"], "AMD": ["--rocm"], None: []}[site["gpus"]]


def _missing(site):
    """Right: the folders that are not mounted, outer ones first, with what may be done there."""
    folders = sorted(site["folders"].items())
    return [each for each in folders if not any(Path(each[0]).is_relative_to(m) for m in site["mounted"])]


def _binds(site):
    """Right: the options that bind what is missing."""
    return [f"--bind={path}:{path}:{'ro' if mode == 'read' else 'rw'}" for path, mode in _missing(site)]


def _line(site, options, image, command):
    """Right: the last line."""
    return shlex.join([*site["launcher"], site["runtime"], "exec", *options, image, *command])


def _text(site, image, command, modules=None, gpus=None, binds=None):
    """Right, unless parts of it are given."""
    lines = _modules(site) if modules is None else modules
    options = (_gpus(site) if gpus is None else gpus) + (_binds(site) if binds is None else binds)
    return "\n".join([*lines, _line(site, options, image, command)])


@wrong("container_command", fails="the program in the image")
def options_behind_the_image(site, image, command):
    """What stands behind the image is the program."""
    words = [*site["launcher"], site["runtime"], "exec", image, "--nv", *_binds(site), *command]
    return "\n".join([*_modules(site), shlex.join(words)])


@wrong("container_command", fails="the program in the image")
def runs_the_images_own_program(site, image, command):
    """`run` starts what the image's maker has chosen, with the command as its arguments."""
    return _text(site, image, command).replace(" exec ", " run ")


@wrong("container_command", fails="the program in the image")
def looks_around(site, image, command):
    """`shell`, as on the slide, waits for somebody to type."""
    return "\n".join([*_modules(site), shlex.join([site["runtime"], "shell", "--nv", image])])


@wrong("container_command", fails="the program in the image")
def always_apptainer(site, image, command):
    """The machine has singularity, or the other way round."""
    other = {"apptainer": "singularity", "singularity": "apptainer"}[site["runtime"]]
    return _text({**site, "runtime": other}, image, command)


@wrong("container_command", fails="the program in the image")
def a_list_of_words(site, image, command):
    """Words for subprocess.run, and no text."""
    return [*site["launcher"], site["runtime"], "exec", *_gpus(site), *_binds(site), image, *command]


@wrong("container_command", fails="one container per task")
def launcher_in_the_image(site, image, command):
    """The image has no srun, and if it had, not the machine's."""
    words = [site["runtime"], "exec", *_gpus(site), *_binds(site), image, *site["launcher"], *command]
    return "\n".join([*_modules(site), shlex.join(words)])


@wrong("container_command", fails="the program in the image")
def adds_to_the_launcher(site, image, command):
    """The list is the caller's: the next command has two containers in it."""
    text = _text(site, image, command)
    site["launcher"] += [site["runtime"], "exec"]
    return text


@wrong("container_command", fails="the program in the image")
def in_the_background(site, image, command):
    """The script goes on to its end, and with it ends the job."""
    return _text(site, image, command) + " &"


@wrong("container_command", fails="one container per task")
def one_container_altogether(site, image, command):
    """On the first node, once."""
    return _text({**site, "launcher": []}, image, command)


@wrong("container_command", fails="one container per task")
def launcher_without_its_options(site, image, command):
    """As many tasks as the launcher likes."""
    return _text({**site, "launcher": [site["launcher"][0], "-v"]}, image, command)


@wrong("container_command", fails="GPUs")
def always_nvidia(site, image, command):
    """On LUMI the GPUs are AMD's."""
    return _text(site, image, command, gpus=["--nv"])


@wrong("container_command", fails="GPUs")
def amd_if_not_nvidia(site, image, command):
    """A node without GPUs has no libraries of a driver either."""
    return _text(site, image, command, gpus=["--nv" if site["gpus"] == "NVIDIA" else "--rocm"])


@wrong("container_command", fails="GPUs")
def folders_or_gpus(site, image, command):
    """`or` takes one of the two."""
    return _text(site, image, command, gpus=[] if _binds(site) else _gpus(site))


@wrong("container_command", fails="GPUs")
def an_empty_word_without_gpus(site, image, command):
    """Where there are no GPUs an empty word stands in the option's place, and so in the image's."""
    return _text(site, image, command, gpus=[], binds=[*_binds(site), "".join(_gpus(site))])


@wrong("container_command", fails="modules")
def on_top_of_what_is_loaded(site, image, command):
    """What .bashrc has loaded stays loaded."""
    return _text(site, image, command, modules=_modules(site)[1:])


@wrong("container_command", fails="modules")
def modules_by_name(site, image, command):
    """In the alphabet's order, in which a module may come before the one that it needs."""
    return _text({**site, "modules": sorted(site["modules"])}, image, command)


@wrong("container_command", fails="modules")
def purges_always(site, image, command):
    """On a machine without modules there is no such command."""
    return _text(site, image, command, modules=_modules(site) or ["module purge"])


@wrong("container_command", fails="modules")
def purges_last(site, image, command):
    """Nothing is loaded when the program starts."""
    return _text(site, image, command, modules=_modules(site)[::-1])


@wrong("container_command", fails="modules")
def tidies_up(site, image, command):
    """Loads what it needs when all is over, and leaves nothing behind."""
    text = _text(site, image, command, modules=[])
    return f"{text}\n{shlex.join(['module', 'load', *site['modules']])}" if site["modules"] else text


@wrong("container_command", fails="folders")
def binds_all(site, image, command):
    """What is mounted anyway is bound once more."""
    return _text(site, image, command, binds=_binds({**site, "mounted": []}))


@wrong("container_command", fails="folders")
def same_beginning(site, image, command):
    """/homes begins with /home, and does not lie in it."""
    there = tuple(site["mounted"])
    kept = {path: mode for path, mode in site["folders"].items() if not path.startswith(there)}
    return _text({**site, "folders": kept}, image, command)


@wrong("container_command", fails="folders")
def mounted_by_its_own_name_only(site, image, command):
    """A folder within a mounted one is there as well."""
    kept = {path: mode for path, mode in site["folders"].items() if path not in site["mounted"]}
    return _text(site, image, command, binds=_binds({**site, "mounted": [], "folders": kept}))


@wrong("container_command", fails="folders")
def first_names_only(site, image, command):
    """Where /scratch/shared is mounted, /scratch/own is not."""
    first = {path.split("/")[1] for path in site["mounted"]}
    kept = {path: mode for path, mode in site["folders"].items() if path.split("/")[1] not in first}
    return _text({**site, "folders": kept}, image, command)


@wrong("container_command", fails="folders")
def all_can_be_written(site, image, command):
    """A slip in the program, and the data are gone."""
    return _text(site, image, command, binds=[f"--bind={path}" for path, _ in _missing(site)])


@wrong("container_command", fails="folders")
def all_to_be_read(site, image, command):
    """The first checkpoint cannot be written."""
    return _text(site, image, command, binds=[f"--bind={path}:{path}:ro" for path, _ in _missing(site)])


@wrong("container_command", fails="folders")
def read_only_in_place_of_the_target(site, image, command):
    """SOURCE:ro is a folder of the name ro."""
    binds = [f"--bind={path}{':ro' if mode == 'read' else ''}" for path, mode in _missing(site)]
    return _text(site, image, command, binds=binds)


@wrong("container_command", fails="folders")
def last_folder_only(site, image, command):
    """An option in a dict is there once."""
    return _text(site, image, command, binds=_binds(site)[-1:])


@wrong("container_command", fails="folders")
def one_bind_always(site, image, command):
    """All in one --bind, also where there is nothing to bind."""
    binds = [bind.removeprefix("--bind=") for bind in _binds(site)]
    return _text(site, image, command, binds=["--bind", ",".join(binds)])


@wrong("container_command", fails="a folder within a folder")
def in_the_order_given(site, image, command):
    """The outer folder is bound over the inner one."""
    order = list(site["folders"])
    binds = sorted(_binds(site), key=lambda bind: order.index(bind[7:].partition(":")[0]))
    return _text(site, image, command, binds=binds)


@wrong("container_command", fails="a folder within a folder")
def the_other_way_round(site, image, command):
    """Right where the inner folders were named first."""
    order = list(site["folders"])[::-1]
    binds = sorted(_binds(site), key=lambda bind: order.index(bind[7:].partition(":")[0]))
    return _text(site, image, command, binds=binds)


@wrong("container_command", fails="a folder within a folder")
def writable_ones_first(site, image, command):
    """Sorted by what may be done there."""
    return _text(site, image, command, binds=sorted(_binds(site), key=lambda bind: bind.endswith(":ro")))


@wrong("container_command", fails="a folder within a folder")
def outer_folders_only(site, image, command):
    """The inner folder comes along, with the outer one's rights."""
    paths = list(site["folders"])
    kept = {
        path: mode
        for path, mode in site["folders"].items()
        if not any(path.startswith(f"{other}/") for other in paths)
    }
    return _text(site, image, command, binds=_binds({**site, "folders": kept}))


@wrong("container_command", fails="words stay whole")
def joined_by_blanks(site, image, command):
    """The shell splits what was one word."""
    line = _line(site, _gpus(site) + _binds(site), "IMAGE", ["COMMAND"])
    return "\n".join([*_modules(site), line.replace("IMAGE COMMAND", " ".join([image, *command]))])


@wrong("container_command", fails="words stay whole")
def in_double_quotes(site, image, command):
    """In double quotes the shell still replaces $5."""
    line = _line(site, _gpus(site) + _binds(site), "IMAGE", ["COMMAND"])
    quoted = " ".join(f'"{word}"' for word in [image, *command])
    return "\n".join([*_modules(site), line.replace("IMAGE COMMAND", quoted)])


@wrong("container_command", fails="words stay whole")
def launcher_as_it_is(site, image, command):
    """The launcher's words may hold blanks, too."""
    return _text(site, image, command).replace(shlex.join(site["launcher"]), " ".join(site["launcher"]))


@wrong("container_command", fails="words stay whole")
def without_empty_words(site, image, command):
    """An empty argument is an argument."""
    return _text(site, image, [word for word in command if word])


@wrong("container_command", fails="folders")
def overlapping_folders(site, image, command):
    """That something is mounted in a folder does not bring the folder along."""
    near = [
        f"--bind={path}:{path}{':ro' if mode == 'read' else ''}"
        for path, mode in _missing(site)
        if not any(Path(mounted).is_relative_to(path) for mounted in site["mounted"])
    ]
    return _text(site, image, command, binds=near)


@wrong("container_command", fails="folders")
def only_directly_in_a_mounted_one(site, image, command):
    """What is mounted comes with all that is in it, however deep."""
    there = {*site["mounted"], "/home"}
    far = [
        f"--bind={path}:{path}{':ro' if mode == 'read' else ''}"
        for path, mode in sorted(site["folders"].items())
        if path not in there and not {str(Path(path).parent), f"/{Path(path).parts[1]}"} & there
    ]
    return _text(site, image, command, binds=far)


@wrong("container_command", fails="words stay whole")
def paths_in_double_quotes(site, image, command):
    """A dollar in a path is the shell's."""
    *lines, last = _text(site, "IMAGE", command, binds=[]).split("\n")
    binds = [f'--bind "{path}:{path}{":ro" if mode == "read" else ""}"' for path, mode in _missing(site)]
    return "\n".join([*lines, last.replace(" IMAGE ", " ".join(["", *binds, f'"{image}" ']))])


@wrong("container_command", fails="words stay whole")
def paths_in_single_quotes(site, image, command):
    """A path may have a single quote itself."""
    words = [*site["launcher"], site["runtime"], "exec", *_gpus(site)]
    paths = [f"'{word}'" for word in (*_binds(site), image)]
    return "\n".join([*_modules(site), f"{shlex.join(words)} {' '.join(paths)} {shlex.join(command)}"])


@wrong("container_command", fails="words stay whole")
def launcher_in_single_quotes(site, image, command):
    """A launcher's word may have a single quote itself."""
    launcher = " ".join(f"'{word}'" for word in site["launcher"])
    rest = shlex.join([site["runtime"], "exec", *_gpus(site), *_binds(site), image, *command])
    return "\n".join([*_modules(site), f"{launcher} {rest}"])


@wrong("container_command", fails="words stay whole")
def quotes_and_dollars_escaped(site, image, command):
    """In double quotes a backslash has to be escaped as well."""

    def quoted(word):
        return '"' + word.replace('"', '\\"').replace("$", "\\$") + '"'

    words = [*site["launcher"], site["runtime"], "exec", *_gpus(site), *_binds(site), image, *command]
    return "\n".join([*_modules(site), " ".join(map(quoted, words))])


def _line_of(quoted, site, image, command):
    """Right, but for how words are quoted."""
    words = [*site["launcher"], site["runtime"], "exec", *_gpus(site), *_binds(site), image, *command]
    return "\n".join([*_modules(site), " ".join(map(quoted, words))])


@wrong("container_command", fails="words stay whole")
def only_words_with_blanks(site, image, command):
    """A shell takes more than blanks for its own."""
    return _line_of(
        lambda word: word if re.fullmatch(r"\S+", word) else shlex.quote(word), site, image, command
    )


@wrong("container_command", fails="words stay whole")
def all_but_backquotes(site, image, command):
    """In double quotes a shell still runs what stands between backquotes."""

    def quoted(word):
        return '"' + re.sub(r'([\\"$])', r"\\\1", word) + '"'

    return _line_of(quoted, site, image, command)


@wrong("container_command", fails="words stay whole")
def a_backslash_before_all(site, image, command):
    """A backslash before the end of a line takes both away."""
    return _line_of(lambda word: re.sub(r"([^\w./:=-])", r"\\\1", word) or "''", site, image, command)


@wrong("container_command", fails="words stay whole")
def only_what_it_has_met(site, image, command):
    """A shell takes brackets, signs of comments and ends of lines for its own as well."""
    special = set(" \"'$\\`&*;")
    return _line_of(
        lambda word: shlex.quote(word) if not word or special & set(word) else word, site, image, command
    )


@wrong("container_command", fails="the program in the image")
def always_singularity(site, image, command):
    """As on the slide; where it is called so, that does."""
    return _text({**site, "runtime": "singularity"}, image, command)


@wrong("container_command", fails="words stay whole")
def folders_as_they_are(site, image, command):
    """A folder's name may have blanks, too."""
    *lines, last = _text(site, "IMAGE", command, binds=["FOLDERS"]).split("\n")
    last = last.replace("FOLDERS ", "".join(f"{bind} " for bind in _binds(site)))
    return "\n".join([*lines, last.replace("IMAGE", shlex.quote(image))])


@wrong("container_command", fails="GPUs")
def of_two_makers(site, image, command):
    """Looks None up among the makers."""
    return _text(site, image, command, gpus=[{"NVIDIA": "--nv", "AMD": "--rocm"}[site["gpus"]]])


@wrong("container_command", fails="GPUs")
def modules_or_gpus(site, image, command):
    """A machine has its modules, and its GPUs."""
    return _text(site, image, command, gpus=[] if site["modules"] else None)


@wrong("container_command", fails="folders")
def modules_or_folders(site, image, command):
    """A machine has its modules, and its folders."""
    return _text(site, image, command, binds=[] if site["modules"] else None)


@wrong("container_command", fails="folders")
def home_is_always_there(site, image, command):
    """Not where a site has said otherwise."""
    return _text({**site, "mounted": [*site["mounted"], "/home"]}, image, command)


@wrong("container_command", fails="words stay whole")
def quoted_before_compared(site, image, command):
    """A path in quotes does not lie in /tmp any more."""
    there = tuple(f"{folder}/" for folder in site["mounted"])
    missing = {
        path: mode for path, mode in site["folders"].items() if not f"{shlex.quote(path)}/".startswith(there)
    }
    return _text({**site, "mounted": [], "folders": missing}, image, command)


@wrong("container_command", fails="folders")
def folders_for_gpus_only(site, image, command):
    """Where there are no GPUs, it returns too early."""
    return _text(site, image, command, binds=None if site["gpus"] else [])


@wrong("container_command", fails="folders")
def somewhere_in_the_path(site, image, command):
    """/scratch/home does not lie in /home."""
    near = {
        path: mode
        for path, mode in site["folders"].items()
        if not any(f"{mounted}/" in f"{path}/" for mounted in site["mounted"])
    }
    return _text({**site, "folders": near, "mounted": []}, image, command)


# -------------------------------------------------------------------------------------------- cpu_bind_map


def _cores(node, threads=None, allowed=None):
    """Right unless told otherwise: for each NUMA node its usable cores."""
    count = sum(map(len, node["cpus_of_numa"])) // (threads or node["threads_per_core"])
    usable = set(range(count)) if allowed is None else set(range(count)) & set(allowed)
    if node["allowed"] is not None and allowed is None:
        usable &= set(node["allowed"])
    return [[cpu for cpu in own if cpu in usable] for own in node["cpus_of_numa"]]


def _dealt(nodes, cores):
    """Right: the first core of each GPU's block."""
    return [
        cores[node][nodes[:gpu].count(node) * (len(cores[node]) // nodes.count(node))]
        for gpu, node in enumerate(nodes)
    ]


@wrong("cpu_bind_map", fails="any machine")
def gpu_beside_node_of_its_number(node):
    """GPU 0 beside core 0: the order in which Slurm would deal the cores out."""
    cores = sorted(core for own in _cores(node) for core in own)
    gpus = len(node["numa_of_gpu"])
    return [cores[gpu * (len(cores) // gpus)] for gpu in range(gpus)]


@wrong("cpu_bind_map", fails="any machine")
def cores_as_floats(node):
    """What a division gives: srun takes 49, and no 49.0."""
    return [float(core) for core in _dealt(node["numa_of_gpu"], _cores(node))]


@wrong("cpu_bind_map", fails="any machine")
def one_core_for_all_of_a_node(node):
    """Both GPUs of a NUMA node get its first core."""
    cores = _cores(node)
    return [cores[node][0] for node in node["numa_of_gpu"]]


@wrong("cpu_bind_map", fails="any machine")
def in_a_sets_order(node):
    """A set of numbers looks sorted, as long as they are few or small."""
    nodes, cores = node["numa_of_gpu"], [list(set(own)) for own in _cores(node)]
    return [
        cores[numa][nodes[:gpu].count(numa) * (len(cores[numa]) // nodes.count(numa))]
        for gpu, numa in enumerate(nodes)
    ]


@wrong("cpu_bind_map", fails="any machine")
def neighbours_on_neighbouring_cores(node):
    """The second GPU of a NUMA node gets the second core, not the second share."""
    nodes, cores = node["numa_of_gpu"], _cores(node)
    return [cores[node][nodes[:gpu].count(node)] for gpu, node in enumerate(nodes)]


@wrong("cpu_bind_map", fails="any machine")
def the_first_get_one_more(node):
    """np.array_split deals out what cannot be shared equally; here it is left over."""
    nodes, cores = node["numa_of_gpu"], _cores(node)
    shares = [np.array_split(own, max(1, nodes.count(numa))) for numa, own in enumerate(cores)]
    return [int(shares[numa][nodes[:gpu].count(numa)][0]) for gpu, numa in enumerate(nodes)]


@wrong("cpu_bind_map", fails="allowed cores")
def reserved_cores_too(node):
    """Forgets that the first core of each eight is not the job's: srun refuses such a map."""
    return _dealt(node["numa_of_gpu"], _cores(node, allowed=range(10**6)))


@wrong("cpu_bind_map", fails="any machine")
def copied_from_the_manual(node):
    """LUMI's line, which is right on LUMI."""
    return [49, 57, 17, 25, 1, 9, 33, 41]


@wrong("cpu_bind_map", fails="any machine")
def two_gpus_a_node(node):
    """Takes for granted that two GPUs share a NUMA node."""
    nodes, cores = node["numa_of_gpu"], _cores(node)
    return [
        cores[node][nodes[:gpu].count(node) % 2 * (len(cores[node]) // 2)] for gpu, node in enumerate(nodes)
    ]


@wrong("cpu_bind_map", fails="allowed cores")
def one_core_further(node):
    """If a core is not allowed, the next one is: so it was on LUMI."""
    nodes, cores = node["numa_of_gpu"], _cores(node, allowed=range(10**6))
    allowed = range(10**6) if node["allowed"] is None else node["allowed"]
    return [core if core in allowed else core + 1 for core in _dealt(nodes, cores)]


@wrong("cpu_bind_map", fails="hardware threads")
def threads_are_cores(node):
    """Deals out second hardware threads as if they were cores."""
    return _dealt(node["numa_of_gpu"], _cores(node, threads=1))


@wrong("cpu_bind_map", fails="hardware threads")
def every_second_cpu(node):
    """As if the two threads of a core were neighbours in number."""
    allowed = range(10**6) if node["allowed"] is None else node["allowed"]
    own = [[c for c in cpus[:: node["threads_per_core"]] if c in allowed] for cpus in node["cpus_of_numa"]]
    return _dealt(node["numa_of_gpu"], own)


@wrong("cpu_bind_map", fails="hardware threads")
def two_threads_a_core(node):
    """One thread a core or two; other processors have four."""
    threads = min(2, node["threads_per_core"])
    return _dealt(node["numa_of_gpu"], _cores(node, threads=threads))


@wrong("cpu_bind_map", fails="allowed cores")
def shares_before_rights(node):
    """Cuts all cores into shares, and takes the first of each that the job may use."""
    nodes, own = node["numa_of_gpu"], _cores(node, allowed=range(10**6))
    cores = []
    for gpu, numa in enumerate(nodes):
        size = len(own[numa]) // nodes.count(numa)
        share = own[numa][nodes[:gpu].count(numa) * size :][:size]
        cores.append(next(core for core in share if node["allowed"] is None or core in node["allowed"]))
    return cores


@wrong("cpu_bind_map", fails="real machines")
def always_a_list(node):
    """Where nothing is said of what the job may use, it may use all."""
    return _dealt(node["numa_of_gpu"], _cores(node, allowed=set(node["allowed"])))


@wrong("cpu_bind_map", fails="any machine")
def as_many_gpus_everywhere(node):
    """Another NUMA node may have more GPUs."""
    nodes, cores = node["numa_of_gpu"], _cores(node)
    most = max(map(nodes.count, nodes))
    return [
        cores[numa][nodes[:gpu].count(numa) * (len(cores[numa]) // most)] for gpu, numa in enumerate(nodes)
    ]


@wrong("cpu_bind_map", fails="any machine")
def numa_nodes_are_alike(node):
    """As many times the first one's CPUs as there are NUMA nodes: some have none."""
    count = len(node["cpus_of_numa"][0]) * len(node["cpus_of_numa"]) // node["threads_per_core"]
    allowed = range(10**6) if node["allowed"] is None else node["allowed"]
    own = [[cpu for cpu in cpus if cpu < count and cpu in allowed] for cpus in node["cpus_of_numa"]]
    return _dealt(node["numa_of_gpu"], own)


@wrong("cpu_bind_map", fails="hardware threads")
def a_thread_will_do(node):
    """A core of which the job may use the second thread only: but the rank is bound to the first."""
    cores = sum(map(len, node["cpus_of_numa"])) // node["threads_per_core"]
    allowed = None if node["allowed"] is None else {cpu % cores for cpu in node["allowed"]}
    return _dealt(node["numa_of_gpu"], _cores({**node, "allowed": allowed}))


@wrong("cpu_bind_map", fails="real machines")
def all_cpus_if_nothing_is_said(node):
    """Where nothing is said of what the job may use, second threads are no cores either."""
    cores = _cores(node) if node["allowed"] is not None else node["cpus_of_numa"]
    return _dealt(node["numa_of_gpu"], cores)


@wrong("cpu_bind_map", fails="any machine")
def cores_by_gpus(node):
    """So many cores has a GPU on average; but NUMA nodes may have other numbers of GPUs."""
    nodes, cores = node["numa_of_gpu"], _cores(node)
    each = sum(len(cores[numa]) for numa in {*nodes}) // len(nodes)
    return [cores[numa][nodes[:gpu].count(numa) * each] for gpu, numa in enumerate(nodes)]


# ------------------------------------------------------------------------------------------ misplaced_cpus


def _given(option):
    """Right: the CPUs of each rank."""
    kind, entries = option.removeprefix("--cpu-bind=").split(":")
    if kind == "map_cpu":
        return [[int(entry, 0)] for entry in entries.split(",")]
    masks = [int(entry, 16) for entry in entries.split(",")]
    return [[cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1] for mask in masks]


def _judged_cpus(given, node, beside=True, allowed=True, taken=None):
    """Right, unless something is overlooked, or another rule says who takes a core from whom."""
    nodes, cores = node["numa_of_gpu"], sum(map(len, node["cpus_of_numa"])) // node["threads_per_core"]
    usable = node["allowed"] if allowed and node["allowed"] is not None else range(10**6)
    neighbours = taken or (lambda rank, other: rank != other and nodes[rank] == nodes[other])
    found = []
    for rank, own in enumerate(given):
        others = [theirs for other, theirs in enumerate(given) if neighbours(rank, other)]
        theirs = {cpu % cores for each in others for cpu in each}
        near = node["cpus_of_numa"][nodes[rank]] if beside else range(10**6)
        found.append([c for c in own if c not in near or c not in usable or c % cores in theirs])
    return found


@wrong("misplaced_cpus", fails="masks")
def bits_from_the_left(option, node):
    """The last digit of a number is its smallest."""
    masks = [bin(int(entry, 16))[2:] for entry in option.rpartition(":")[2].split(",")]
    return _judged_cpus([[cpu for cpu, bit in enumerate(mask) if bit == "1"] for mask in masks], node)


@wrong("misplaced_cpus", fails="masks")
def a_digit_a_cpu(option, node):
    """A hexadecimal digit is four CPUs."""
    entries = [entry.removeprefix("0x")[::-1] for entry in option.rpartition(":")[2].split(",")]
    return _judged_cpus([[cpu for cpu, digit in enumerate(entry) if digit != "0"] for entry in entries], node)


@wrong("misplaced_cpus", fails="masks")
def bits_from_one(option, node):
    """The first bit is CPU 0."""
    return _judged_cpus([[cpu + 1 for cpu in own] for own in _given(option)], node)


@wrong("misplaced_cpus", fails="masks")
def cpus_that_there_are(option, node):
    """A misprint of two zeros may lead to CPUs that the node does not have."""
    count = sum(map(len, node["cpus_of_numa"]))
    return _judged_cpus([[cpu for cpu in own if cpu < count] for own in _given(option)], node)


@wrong("misplaced_cpus", fails="one rank per core")
def the_victim_too(option, node):
    """Rank 0 is where it should be; the other is wrong there."""
    return _judged_cpus(_given(option), node, taken=lambda rank, other: rank != other)


@wrong("misplaced_cpus", fails="masks")
def the_ranks_only(option, node):
    """Which ranks, but not which CPUs."""
    return [rank for rank, cpus in enumerate(_judged_cpus(_given(option), node)) if cpus]


@wrong("misplaced_cpus", fails="masks")
def knows_the_slide(option, node):
    """Two misprints, wherever one looks."""
    return [[], list(range(65, 72)), [], [], [], [], [], list(range(49, 56))]


@wrong("misplaced_cpus", fails="beside the GPU")
def node_by_division(option, node):
    """Takes for granted that NUMA nodes have consecutive cores."""
    size = len(node["cpus_of_numa"][0]) // node["threads_per_core"]
    count = len(node["cpus_of_numa"])
    cpus = [[] for _ in range(count)]
    for cpu in range(sum(map(len, node["cpus_of_numa"]))):
        cpus[cpu // size % count].append(cpu)
    return _judged_cpus(_given(option), {**node, "cpus_of_numa": cpus})


@wrong("misplaced_cpus", fails="masks")
def always_with_0x(option, node):
    """Masks are hexadecimal without it, too."""
    entries = option.rpartition(":")[2].split(",")
    masks = [int(entry, 0) if entry.startswith("0x") or entry.isdigit() else 0 for entry in entries]
    return _judged_cpus([[c for c in range(mask.bit_length()) if mask >> c & 1] for mask in masks], node)


@wrong("misplaced_cpus", fails="beside the GPU")
def if_all_are_wrong(option, node):
    """A rank with some right CPUs may have wrong ones."""
    given = _given(option)
    found = _judged_cpus(given, node)
    return [cpus if cpus == own else [] for cpus, own in zip(found, given, strict=True)]


@wrong("misplaced_cpus", fails="allowed")
def all_cpus_of_the_node(option, node):
    """Forgets what the job may not use."""
    return _judged_cpus(_given(option), node, allowed=False)


@wrong("misplaced_cpus", fails="allowed")
def allowed_is_always_a_list(option, node):
    """Where nothing is said of what the job may use, it may use all."""
    return _judged_cpus(_given(option), {**node, "allowed": list(node["allowed"])})


@wrong("misplaced_cpus", fails="one rank per core")
def each_rank_for_itself(option, node):
    """Two ranks on one core are not seen."""
    return _judged_cpus(_given(option), node, taken=lambda rank, other: False)


@wrong("misplaced_cpus", fails="one rank per core")
def same_cpu_only(option, node):
    """Two threads of one core are one core."""
    return _judged_cpus(_given(option), {**node, "threads_per_core": 1})


@wrong("misplaced_cpus", fails="one rank per core")
def the_second_rank_only(option, node):
    """Who comes later is wrong; but the first is disturbed as much."""
    nodes = node["numa_of_gpu"]
    return _judged_cpus(
        _given(option), node, taken=lambda rank, other: other < rank and nodes[rank] == nodes[other]
    )


@wrong("misplaced_cpus", fails="one rank per core")
def the_neighbours_only(option, node):
    """Of three ranks beside a NUMA node the first and the last may meet."""
    nodes = node["numa_of_gpu"]
    return _judged_cpus(
        _given(option), node, taken=lambda rank, other: abs(rank - other) == 1 and nodes[rank] == nodes[other]
    )


@wrong("misplaced_cpus", fails="one rank per core")
def its_own_threads(option, node):
    """Counts who runs on a core by CPUs, and not by ranks: a rank with both threads is two."""
    given, nodes = _given(option), node["numa_of_gpu"]
    cores = sum(map(len, node["cpus_of_numa"])) // node["threads_per_core"]
    on_core = [(nodes[rank], cpu % cores) for rank, own in enumerate(given) for cpu in own]
    return [
        [cpu for cpu in own if cpu in judged or on_core.count((nodes[rank], cpu % cores)) > 1]
        for rank, (own, judged) in enumerate(zip(given, _judged_cpus(given, node), strict=True))
    ]


@wrong("misplaced_cpus", fails="maps")
def masks_only(option, node):
    """A CPU's number is read as a mask."""
    return _judged_cpus(_given(option.replace("map_cpu", "mask_cpu")), node)


@wrong("misplaced_cpus", fails="maps")
def decimal_only(option, node):
    """0x10 is no decimal number."""
    if "map_cpu" not in option:
        return _judged_cpus(_given(option), node)
    return _judged_cpus([[int(entry)] for entry in option.rpartition(":")[2].split(",")], node)


@wrong("misplaced_cpus", fails="beside the GPU")
def a_rank_for_each_gpu(option, node):
    """There may be fewer."""
    return [_judged_cpus(_given(option), node)[rank] for rank in range(len(node["numa_of_gpu"]))]


@wrong("misplaced_cpus", fails="one rank per core")
def only_who_may_be_there(option, node):
    """A rank that runs where it may not run is in the way of the others all the same."""
    given = _given(option)
    right = [
        [c for c in own if c in near and c in (node["allowed"] or near)]
        for own, near in zip(given, map(node["cpus_of_numa"].__getitem__, node["numa_of_gpu"]), strict=False)
    ]
    cores = sum(map(len, node["cpus_of_numa"])) // node["threads_per_core"]
    found = []
    for rank, own in enumerate(given):
        theirs = {
            cpu % cores
            for other, cpus in enumerate(right)
            for cpu in cpus
            if other != rank and node["numa_of_gpu"][other] == node["numa_of_gpu"][rank]
        }
        found.append([cpu for cpu in own if cpu not in right[rank] or cpu % cores in theirs])
    return found


@wrong("misplaced_cpus", fails="one rank per core")
def all_numa_nodes_have_cpus(option, node):
    """As many times the first one's CPUs as there are NUMA nodes."""
    cpus, nodes, given = node["cpus_of_numa"], node["numa_of_gpu"], _given(option)
    cores = len(cpus[0]) * len(cpus) // node["threads_per_core"]
    far = _judged_cpus(given, node, taken=lambda rank, other: False)
    found = []
    for rank, own in enumerate(given):
        others = [
            theirs for other, theirs in enumerate(given) if other != rank and nodes[other] == nodes[rank]
        ]
        taken = {cpu % cores for theirs in others for cpu in theirs}
        found.append([cpu for cpu in own if cpu in far[rank] or cpu % cores in taken])
    return found


@wrong("misplaced_cpus", fails="allowed")
def first_threads_if_nothing_is_said(option, node):
    """Where nothing is said of what the job may use, it may use second threads as well."""
    cores = range(sum(map(len, node["cpus_of_numa"])) // node["threads_per_core"])
    return _judged_cpus(_given(option), {**node, "allowed": node["allowed"] or list(cores)})


@wrong("misplaced_cpus", fails="masks")
def the_first_256(option, node):
    """A misprint of many zeros may lead further."""
    return _judged_cpus([[cpu for cpu in own if cpu < 256] for own in _given(option)], node)


# -------------------------------------------------------------------------------------------- batch_script


_HEAD = "#!/bin/bash\n"
_PORT = "MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))"
_MEET = f"""
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export {_PORT}
"""


def _options(nodes, gpus):
    """Right: the lines of #SBATCH."""
    return (
        f"#SBATCH --nodes={nodes}\n#SBATCH --ntasks-per-node={gpus}\n#SBATCH --gpus-per-node={gpus}\n"
        f"#SBATCH --time=00:30:00\n"
    )


@wrong("batch_script", fails="sbatch reads it")
def options_after_a_command(nodes, gpus_per_node, command):
    """Loads what it needs first; from there on sbatch ignores every #SBATCH."""
    return _HEAD + "set -e\n" + _options(nodes, gpus_per_node) + _MEET + f"srun {command}\n"


@wrong("batch_script", fails="sbatch reads it")
def a_blank_in_front(nodes, gpus_per_node, command):
    """# SBATCH is a comment."""
    options = _options(nodes, gpus_per_node).replace("#SBATCH", "# SBATCH")
    return _HEAD + options + _MEET + f"srun {command}\n"


@wrong("batch_script", fails="what is asked for")
def half_a_minute(nodes, gpus_per_node, command):
    """0:30 is minutes and seconds."""
    options = _options(nodes, gpus_per_node).replace("00:30:00", "0:30")
    return _HEAD + options + _MEET + f"srun {command}\n"


@wrong("batch_script", fails="what is asked for")
def gpus_of_the_job(nodes, gpus_per_node, command):
    """Right in the sum, and Slurm decides which node gets how many."""
    options = _options(nodes, gpus_per_node)
    options = options.replace(f"--gpus-per-node={gpus_per_node}", f"--gpus={nodes * gpus_per_node}")
    return _HEAD + options + _MEET + f"srun {command}\n"


@wrong("batch_script", fails="what is asked for")
def a_partition_of_another_machine(nodes, gpus_per_node, command):
    """Copied with the rest: not every cluster has such a partition, or charges this account."""
    options = _options(nodes, gpus_per_node) + "#SBATCH --account=training\n"
    return _HEAD + options + _MEET + f"srun {command}\n"


@wrong("batch_script", fails="one task per GPU")
def quoted_twice(nodes, gpus_per_node, command):
    """The quotes of the command end those round it."""
    return _HEAD + _options(nodes, gpus_per_node) + _MEET + f'srun bash -c "{command}"\n'


@wrong("batch_script", fails="one task per GPU")
def without_srun(nodes, gpus_per_node, command):
    """The script runs once, on the first node, and so does the command."""
    return _HEAD + _options(nodes, gpus_per_node) + _MEET + f"{command}\n"


@wrong("batch_script", fails="one task per GPU")
def only_the_total(nodes, gpus_per_node, command):
    """--ntasks alone: Slurm gives every node one task and fills the first node with the rest."""
    options = _options(nodes, gpus_per_node)
    options = options.replace(f"--ntasks-per-node={gpus_per_node}", f"--ntasks={nodes * gpus_per_node}")
    return _HEAD + options + _MEET + f"srun {command}\n"


@wrong("batch_script", fails="one task per GPU")
def for_nodes_of_eight(nodes, gpus_per_node, command):
    """srun -n 16 was right where it was tried; a step of more tasks than the job has is refused."""
    return _HEAD + _options(nodes, gpus_per_node) + _MEET + f"srun -n {8 * nodes} {command}\n"


@wrong("batch_script", fails="a meeting place")
def everybody_at_home(nodes, gpus_per_node, command):
    """On the second node localhost is the second node."""
    meet = f"export MASTER_ADDR=localhost {_PORT}\n"
    return _HEAD + _options(nodes, gpus_per_node) + meet + f"srun {command}\n"


@wrong("batch_script", fails="a meeting place")
def hostname_in_the_task(nodes, gpus_per_node, command):
    """hostname in a task is that task's node."""
    task = f"cat >task.sh <<'END'\nexport MASTER_ADDR=$(hostname) {_PORT}\nexec {command}\nEND\n"
    return _HEAD + _options(nodes, gpus_per_node) + task + "srun bash task.sh\n"


@wrong("batch_script", fails="a meeting place")
def the_first_node_that_there_is(nodes, gpus_per_node, command):
    """The host that it was tried on."""
    meet = f"export MASTER_ADDR=node1 {_PORT}\n"
    return _HEAD + _options(nodes, gpus_per_node) + meet + f"srun {command}\n"


@wrong("batch_script", fails="a meeting place")
def what_stands_before_the_hyphen(nodes, gpus_per_node, command):
    """So it was with node[1-2]; a list of hosts may have commas, and a name hyphens."""
    meet = f"export MASTER_ADDR=$(echo $SLURM_JOB_NODELIST | cut -d- -f1 | tr -d '[') {_PORT}\n"
    return _HEAD + _options(nodes, gpus_per_node) + meet + f"srun {command}\n"


@wrong("batch_script", fails="a meeting place")
def what_stands_before_the_comma(nodes, gpus_per_node, command):
    """So it was with node[2,4]; hosts that follow each other are a range."""
    meet = f"export MASTER_ADDR=$(echo $SLURM_JOB_NODELIST | cut -d, -f1 | tr -d '[') {_PORT}\n"
    return _HEAD + _options(nodes, gpus_per_node) + meet + f"srun {command}\n"


@wrong("batch_script", fails="a meeting place")
def a_port_that_is_written_down(nodes, gpus_per_node, command):
    """Two jobs that share a node then meet at one port."""
    meet = _MEET.replace(_PORT, "MASTER_PORT=29500")
    return _HEAD + _options(nodes, gpus_per_node) + meet + f"srun {command}\n"


@wrong("batch_script", fails="a meeting place")
def a_port_for_each_job_ever(nodes, gpus_per_node, command):
    """After some years jobs have numbers of seven digits."""
    meet = _MEET.replace(_PORT, "MASTER_PORT=$((10000 + SLURM_JOB_ID))")
    return _HEAD + _options(nodes, gpus_per_node) + meet + f"srun {command}\n"


@wrong("batch_script", fails="a meeting place")
def what_stands_in_the_bracket(nodes, gpus_per_node, command):
    """The name of one node alone has no bracket."""
    meet = """
    name=${SLURM_JOB_NODELIST%%[*} numbers=${SLURM_JOB_NODELIST#*[}
    export MASTER_ADDR=$name${numbers%%[],-]*} MASTER_PORT=29500
    """
    return _HEAD + _options(nodes, gpus_per_node) + meet + f"srun {command}\n"


@wrong("batch_script", fails="what is asked for")
def whole_nodes(nodes, gpus_per_node, command):
    """--exclusive: a job has, and pays, all GPUs of its nodes."""
    options = _options(nodes, gpus_per_node) + "#SBATCH --exclusive\n"
    return _HEAD + options + _MEET + f"srun {command}\n"


@wrong("batch_script", fails="fails with the training")
def says_done(nodes, gpus_per_node, command):
    """The echo succeeds, so the job does."""
    return _HEAD + _options(nodes, gpus_per_node) + _MEET + f'srun {command}\necho "done at $(date)"\n'


@wrong("batch_script", fails="what is asked for")
def nodes_for_gpus(nodes, gpus_per_node, command):
    """Two numbers that are easily taken for each other."""
    return _HEAD + _options(gpus_per_node, nodes) + _MEET + f"srun {command}\n"


@wrong("batch_script", fails="one task per GPU")
def a_task_a_node_a_node(nodes, gpus_per_node, command):
    """Right where there are as many GPUs a node as nodes."""
    options = _options(nodes, gpus_per_node)
    options = options.replace(f"tasks-per-node={gpus_per_node}", f"tasks-per-node={nodes}")
    return _HEAD + options + _MEET + f"srun {command}\n"


@wrong("batch_script", fails="sbatch reads it")
def half_a_character(nodes, gpus_per_node, command):
    """No file can hold it."""
    return _HEAD + "# \ud800\n" + _options(nodes, gpus_per_node) + _MEET + f"srun {command}\n"


@wrong("batch_script", fails="sbatch reads it")
def indented_with_its_command(nodes, gpus_per_node, command):
    """dedent takes off what all lines begin with: a word of the command may have lines of its own."""
    script = _HEAD + _options(nodes, gpus_per_node) + _MEET
    lines = "".join(f"    {line.strip()}\n" for line in script.splitlines())
    return textwrap.dedent(f"{lines}    srun {command}\n")


# ------------------------------------------------------------------------------------- checkpoints, survival

# -------------------------------------------------------------------------------------- checkpoint_interval


@wrong("checkpoint_interval", fails="one node")
def forgets_the_two(checkpoint_seconds, mean_time_between_failures, nodes=1):
    """The geometric mean of the two times: as if a failure cost a whole interval, not half of one."""
    return math.sqrt(checkpoint_seconds * mean_time_between_failures / nodes)


@wrong("checkpoint_interval", fails="one node")
def forgets_the_root(checkpoint_seconds, mean_time_between_failures, nodes=1):
    """The square of the interval."""
    return 2 * checkpoint_seconds * mean_time_between_failures / nodes


@wrong("checkpoint_interval", fails="one node")
def as_often_as_failures(checkpoint_seconds, mean_time_between_failures, nodes=1):
    """A checkpoint for each failure that is expected."""
    return mean_time_between_failures / nodes


@wrong("checkpoint_interval", fails="one node")
def in_whole_minutes(checkpoint_seconds, mean_time_between_failures, nodes=1):
    """Rounds to what looks good in a batch script."""
    return 60.0 * round(math.sqrt(2 * checkpoint_seconds * mean_time_between_failures / nodes) / 60)


@wrong("checkpoint_interval", fails="one node")
def no_longer_than_until_a_failure(checkpoint_seconds, mean_time_between_failures, nodes=1):
    """Where checkpoints take long, Young's interval is longer than the time between two failures."""
    failure = mean_time_between_failures / nodes
    return min(math.sqrt(2 * checkpoint_seconds * failure), failure)


@wrong("checkpoint_interval", fails="one node")
def no_shorter_than_a_checkpoint(checkpoint_seconds, mean_time_between_failures, nodes=1):
    """It may be shorter."""
    return max(math.sqrt(2 * checkpoint_seconds * mean_time_between_failures / nodes), checkpoint_seconds)


@wrong("checkpoint_interval", fails="many nodes")
def as_if_on_one_node(checkpoint_seconds, mean_time_between_failures, nodes=1):
    """The job fails as seldom as one of its nodes."""
    return math.sqrt(2 * checkpoint_seconds * mean_time_between_failures)


@wrong("checkpoint_interval", fails="many nodes")
def interval_by_nodes(checkpoint_seconds, mean_time_between_failures, nodes=1):
    """Divides the interval, not the mean time, by the nodes."""
    return math.sqrt(2 * checkpoint_seconds * mean_time_between_failures) / nodes


@wrong("checkpoint_interval", fails="many nodes")
def all_nodes_must_fail(checkpoint_seconds, mean_time_between_failures, nodes=1):
    """More nodes make the job safer."""
    return math.sqrt(2 * checkpoint_seconds * mean_time_between_failures * nodes)


# ------------------------------------------------------------------------------------------ save_checkpoint


def _sync_folder(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _written(state, temporary):
    with open(temporary, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def _replaced(path, state, temporary=None, write=_written):
    """Right, up to the name: written beside path and moved there; gone, if that fails."""
    temporary = temporary or path.with_name(path.name + ".tmp")
    try:
        write(state, temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@wrong("save_checkpoint", fails="can be loaded")
def under_another_name(path, state):
    """torch.save adds no suffix, and with_suffix takes the old one away."""
    _written(state, path.with_suffix(".tmp"))
    os.replace(path.with_suffix(".tmp"), path.with_suffix(""))


@wrong("save_checkpoint", fails="can be loaded")
def never_overwrites(path, state):
    """A checkpoint that is there is left as it is."""
    if not path.exists():
        _written(state, path.with_suffix(".tmp"))
        os.replace(path.with_suffix(".tmp"), path)
        _sync_folder(path.parent)


@wrong("save_checkpoint", fails="can be loaded")
def makes_room_first(path, state):
    """Removes the other checkpoints of the folder."""
    _written(state, path.with_suffix(".tmp"))
    os.replace(path.with_suffix(".tmp"), path)
    for other in path.parent.glob("*.pt"):
        if other != path:
            other.unlink()


@wrong("save_checkpoint", fails="whole at every moment")
def straight_to_its_name(path, state):
    """What everybody does first."""
    torch.save(state, path)


@wrong("save_checkpoint", fails="whole at every moment")
def removes_the_old_one_first(path, state):
    """As if rename could not replace."""
    temporary = path.with_suffix(".tmp")
    _written(state, temporary)
    path.unlink(missing_ok=True)
    temporary.rename(path)
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="whole at every moment")
def keeps_a_backup(path, state):
    """Moves the old one aside, so that for a moment there is none."""
    if path.exists():
        os.replace(path, path.with_suffix(".bak.tmp"))
    _written(state, path.with_suffix(".tmp"))
    os.replace(path.with_suffix(".tmp"), path)
    path.with_suffix(".bak.tmp").unlink(missing_ok=True)
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="whole at every moment")
def nothing_there_nothing_to_lose(path, state):
    """Straight to a name that is not there yet: but whoever looks for the newest checkpoint finds it torn."""
    _replaced(path, state, temporary=None if path.exists() else path)
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="temporary file")
def written_in_tmp(path, state):
    """The usual place for temporary files is another disk than that of the checkpoints."""
    with tempfile.NamedTemporaryFile("wb", suffix=".tmp", delete=False) as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    shutil.move(file.name, path)
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="temporary file")
def in_tmp_for_a_name_alone(path, state):
    """tempfile takes dir=None for the usual place, and the dirname of a name alone is empty."""
    handle, name = tempfile.mkstemp(dir=os.path.dirname(path) or None, suffix=".tmp")
    os.close(handle)
    _replaced(path, state, temporary=Path(name))
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="temporary file")
def looks_like_a_checkpoint(path, state):
    """new-step-7.pt: a kill leaves a file that a search for *.pt finds."""
    _replaced(path, state, temporary=path.with_name("new-" + path.name))
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="on the disk before its name")
def rename_only(path, state):
    """The usual recipe; it survives a kill, and no power failure."""
    _replaced(path, state, write=torch.save)


@wrong("save_checkpoint", fails="on the disk before its name")
def forgets_to_flush(path, state):
    """fsync while the last bytes are still in Python's buffer."""

    def write(state, temporary):
        memory = io.BytesIO()
        torch.save(state, memory)
        with open(temporary, "wb", buffering=2**20) as file:
            file.write(memory.getvalue())
            os.fsync(file.fileno())

    _replaced(path, state, write=write)
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="on the disk before its name")
def synced_too_late(path, state):
    """fsync of the file after it got its name."""
    _replaced(path, state, write=torch.save)
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="on the disk before its name")
def leaves_the_file_open(path, state):
    """Opens the file once more for fsync, and never closes it."""

    def write(state, temporary):
        torch.save(state, temporary)
        os.fsync(os.open(temporary, os.O_RDONLY))

    _replaced(path, state, write=write)
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="the directory too")
def forgets_the_directory(path, state):
    """The bytes are on the disk, the name may not be."""
    _replaced(path, state)


@wrong("save_checkpoint", fails="on the disk before its name")
def the_folder_in_place_of_the_file(path, state):
    """Sends the folder to the disk while the file is open, and the file never."""

    def write(state, temporary):
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            _sync_folder(path.parent)

    _replaced(path, state, write=write)
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="the directory too")
def the_file_in_place_of_the_folder(path, state):
    """Opens the folder, and sends the file to the disk once more."""
    _replaced(path, state)
    folder = os.open(path.parent, os.O_RDONLY)
    with open(path, "rb") as file:
        os.fsync(file)
    os.close(folder)


@wrong("save_checkpoint", fails="the directory too")
def directory_before_the_rename(path, state):
    """Sends the name of the temporary file to the disk."""

    def write(state, temporary):
        _written(state, temporary)
        _sync_folder(path.parent)

    _replaced(path, state, write=write)


@wrong("save_checkpoint", fails="the directory too")
def leaves_the_directory_open(path, state):
    """A descriptor is lost with every save; after a thousand of them nothing can be opened any more."""
    _replaced(path, state)
    os.fsync(os.open(path.parent, os.O_RDONLY))


@wrong("save_checkpoint", fails="after a crash")
def over_what_is_left(path, state):
    """Opens without O_TRUNC: what a longer temporary file had at its end stays there."""

    def write(state, temporary):
        memory = io.BytesIO()
        torch.save(state, memory)
        with os.fdopen(os.open(temporary, os.O_CREAT | os.O_WRONLY), "wb") as file:
            file.write(memory.getvalue())
            file.flush()
            os.fsync(file.fileno())

    _replaced(path, state, write=write)
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="when writing fails")
def cleans_up_after_torch_save_only(path, state):
    """A disk that is full may say so only at fsync, and the temporary file stays."""
    temporary = path.with_suffix(".tmp")
    try:
        torch.save(state, temporary)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="after a crash")
def exclusive(path, state):
    """After a crash the temporary file is there, and no save works any more."""
    temporary = path.with_suffix(".tmp")
    try:
        with open(temporary, "xb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise
    except BaseException:
        temporary.unlink()
        raise
    os.replace(temporary, path)
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="when writing fails")
def leaves_it_to_the_next(path, state):
    """On a full disk the half-written file stays, and fills it."""
    with tempfile.NamedTemporaryFile("wb", dir=path.parent, suffix=".tmp", delete=False) as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="when writing fails")
def hides_the_error(path, state):
    """Training goes on, and believes that it is saved."""
    temporary = path.with_suffix(".tmp")
    try:
        _written(state, temporary)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except Exception as error:
        print("could not save:", error)
        temporary.unlink(missing_ok=True)


@wrong("save_checkpoint", fails="when writing fails")
def expects_a_full_disk_only(path, state):
    """A state that cannot be pickled is no OSError, and leaves the temporary file there."""
    temporary = path.with_suffix(".tmp")
    try:
        _written(state, temporary)
    except OSError:
        temporary.unlink()
        raise
    os.replace(temporary, path)
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="when writing fails")
def expects_no_interruption(path, state):
    """Ctrl+C is a KeyboardInterrupt, which is no Exception."""
    temporary = path.with_suffix(".tmp")
    try:
        _written(state, temporary)
        os.replace(temporary, path)
    except Exception:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="when writing fails")
def an_error_of_its_own(path, state):
    """Whoever presses Ctrl+C wants to end the program, and not to hear of a save."""
    temporary = path.with_suffix(".tmp")
    try:
        _written(state, temporary)
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        raise RuntimeError(f"{path} was not saved") from error
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="when writing fails")
def an_error_for_errors(path, state):
    """Whoever waits for an OSError, to make room on the disk, hears of something else."""
    temporary = path.with_suffix(".tmp")
    try:
        _written(state, temporary)
        os.replace(temporary, path)
    except Exception as error:
        raise RuntimeError(f"{path} was not saved") from error
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="when writing fails")
def closes_before_it_removes(path, state):
    """On a full disk closing writes once more, fails once more, and nothing is removed."""
    temporary = path.with_suffix(".tmp")
    file = temporary.open("wb")
    try:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
        file.close()
        os.replace(temporary, path)
    except BaseException:
        file.close()
        temporary.unlink()
        raise
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="on the disk before its name")
def flushes_large_ones_only(path, state):
    """What is larger than Python's buffer goes past it; a small state is still there."""
    temporary = path.with_suffix(".tmp")
    held = io.BytesIO()
    torch.save(state, held)
    try:
        with open(temporary, "wb") as file:
            file.write(held.getvalue())
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="when writing fails")
def removes_what_is_not_there(path, state):
    """Where the temporary file cannot be opened, its removal fails, and that error hides the other."""
    temporary = path.with_suffix(".tmp")
    try:
        _written(state, temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink()
        raise
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="the directory too")
def the_folder_of_a_name_alone(path, state):
    """os.path.dirname("step-7.pt") is an empty text, and that is no folder."""
    _replaced(path, state)
    _sync_folder(os.path.dirname(path))


@wrong("save_checkpoint", fails="the directory too")
def the_folder_that_it_is_in(path, state):
    """The working directory is the file's folder where its path is a name alone."""
    _replaced(path, state)
    _sync_folder(os.curdir)


@wrong("save_checkpoint", fails="when writing fails")
def does_not_mind_the_folder(path, state):
    """The name may be gone after a power failure, and nobody has heard of it."""
    _replaced(path, state)
    try:
        _sync_folder(path.parent)
    except OSError as error:
        print("could not send the folder to the disk:", error)


@wrong("save_checkpoint", fails="when writing fails")
def closed_if_all_goes_well(path, state):
    """Who catches the error and trains on has a file open for each save that failed."""

    def write(state, temporary):
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        torch.save(state, temporary)
        os.fsync(descriptor)
        os.close(descriptor)

    _replaced(path, state, write=write)
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="when writing fails")
def makes_room_for_the_next(path, state):
    """Removes the other checkpoints when the disk is full."""
    try:
        _replaced(path, state)
    except OSError:
        for other in path.parent.glob("step-*.pt"):
            if other != path:
                other.unlink()
        raise
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="when writing fails")
def better_than_nothing(path, state):
    """If it cannot be done safely, it is done the other way, over the checkpoint that there is."""
    try:
        _replaced(path, state)
    except OSError:
        torch.save(state, path)
        raise
    _sync_folder(path.parent)


# ---------------------------------------------------------------------------------------------- load_latest


def _numbered(directory):
    """Right: the checkpoints, newest first."""
    found = {path: re.fullmatch(r"step-([0-9]+)\.pt", path.name) for path in Path(directory).glob("*")}
    numbers = {path: int(match[1]) for path, match in found.items() if match}
    return sorted(numbers, key=numbers.get, reverse=True)


def _whole(path):
    """Right: the state, or an exception."""
    damaged = zipfile.ZipFile(path).testzip()
    if damaged is not None:
        raise ValueError(f"{damaged} is damaged")
    return torch.load(path)


@wrong("load_latest", fails="newest")
def names_sorted_as_texts(directory):
    """step-9.pt comes after step-10.pt."""
    paths = sorted(directory.glob("step-*.pt"))
    return _whole(paths[-1]) if paths else None


@wrong("load_latest", fails="newest")
def changed_last(directory):
    """Whoever restores a backup, or copies a folder, changes the times."""
    paths = sorted(directory.glob("step-*.pt"), key=lambda path: path.stat().st_mtime)
    return _whole(paths[-1]) if paths else None


@wrong("load_latest", fails="newest")
def the_oldest(directory):
    """Forgets to reverse the order."""
    for path in reversed(_numbered(directory)):
        return _whole(path)
    return None


@wrong("load_latest", fails="nothing there")
def a_first_start_is_an_error(directory):
    """max() of nothing."""
    return _whole(max(directory.glob("step-*.pt"), key=lambda path: int(path.stem[5:])))


@wrong("load_latest", fails="nothing there")
def lists_a_folder_that_is_not_there(directory):
    """os.listdir raises where Path.glob finds nothing."""
    names = [name for name in os.listdir(directory) if re.fullmatch(r"step-\d+\.pt", name)]
    newest = max(names, key=lambda name: int(name[5:-3]), default=None)
    return _whole(directory / newest) if newest else None


@wrong("load_latest", fails="other files")
def takes_every_pt(directory):
    """best.pt has no number."""
    paths = sorted(directory.glob("*.pt"), key=lambda path: int(path.stem.split("-")[-1]))
    return _whole(paths[-1]) if paths else None


@wrong("load_latest", fails="other files")
def searches_in_the_name(directory):
    """re.search finds step-12.pt in step-12.pt.tmp and in old-step-12.pt."""
    found = {path: re.search(r"step-(\d+)\.pt", path.name) for path in directory.glob("*")}
    paths = sorted((int(match[1]), path) for path, match in found.items() if match)
    return _whole(paths[-1][1]) if paths else None


@wrong("load_latest", fails="torn files")
def every_zip_is_a_checkpoint(directory):
    """Whether the archive is whole, not what is in it."""
    for path in _numbered(directory):
        try:
            whole = zipfile.ZipFile(path).testzip() is None
        except (OSError, zipfile.BadZipFile):
            whole = False
        if whole:
            return torch.load(path)
        warnings.warn(f"{path} is damaged", stacklevel=2)
    return None


@wrong("load_latest", fails="torn files")
def trusts_the_newest(directory):
    """A kill while writing, and nothing starts any more."""
    for path in _numbered(directory):
        return _whole(path)
    return None


@wrong("load_latest", fails="torn files")
def expects_one_kind_of_error(directory):
    """RuntimeError is what torch.load raised when it was tried."""
    for path in _numbered(directory):
        try:
            return torch.load(path)
        except RuntimeError:
            warnings.warn(f"{path.name} cannot be read", stacklevel=2)
    return None


@wrong("load_latest", fails="tells and keeps")
def expects_files_only(directory):
    """A folder may be called so, and then neither of these errors comes."""
    for path in _numbered(directory):
        try:
            return _whole(path)
        except (zipfile.BadZipFile, RuntimeError, EOFError, ValueError):
            warnings.warn(f"{path.name} cannot be read", stacklevel=2)
    return None


@wrong("load_latest", fails="torn files")
def gives_up_after_the_second(directory):
    """Only the one before is tried."""
    for path in _numbered(directory)[:2]:
        try:
            return _whole(path)
        except Exception:
            warnings.warn(f"{path.name} cannot be read", stacklevel=2)
    return None


@wrong("load_latest", fails="torn files")
def judges_by_size(directory):
    """An empty file is torn; but others are, too."""
    for path in _numbered(directory):
        if path.stat().st_size > 100:
            return _whole(path)
        warnings.warn(f"{path.name} is empty", stacklevel=2)
    return None


@wrong("load_latest", fails="damaged inside")
def trusts_torch_load(directory):
    """torch.load does not look at the checksums."""
    for path in _numbered(directory):
        try:
            return torch.load(path)
        except Exception as error:
            warnings.warn(f"{path.name}: {error}", stacklevel=2)
    return None


@wrong("load_latest", fails="damaged inside")
def only_the_archive_s_end(directory):
    """A zip file's list of contents stands at its end and says nothing about the numbers before it."""
    for path in _numbered(directory):
        if zipfile.is_zipfile(path) and any(
            name.endswith("data.pkl") for name in zipfile.ZipFile(path).namelist()
        ):
            return torch.load(path)
        warnings.warn(f"{path.name} is no archive", stacklevel=2)
    return None


@wrong("load_latest", fails="tells and keeps")
def without_a_word(directory):
    """A thousand steps are lost, and nobody knows."""
    for path in _numbered(directory):
        try:
            return _whole(path)
        except Exception:
            continue
    return None


@wrong("load_latest", fails="tells and keeps")
def cleans_up(directory):
    """Removes what it could not read: a full node's memory, a slow disk, and good checkpoints are gone."""
    for path in _numbered(directory):
        try:
            return _whole(path)
        except Exception as error:
            warnings.warn(f"{path.name} is removed: {error}", stacklevel=2)
            path.unlink()
    return None


def _newest(paths):
    """Right: the first of the paths that is whole; tells of the others."""
    for path in paths:
        try:
            return _whole(path)
        except Exception as error:
            warnings.warn(f"{path.name}: {error}", stacklevel=2)
    return None


@wrong("load_latest", fails="newest")
def the_longest_name(directory):
    """A name with more digits has the larger number, as long as none has zeros before it."""
    return _newest(sorted(_numbered(directory), key=lambda path: (len(path.name), path.name), reverse=True))


@wrong("load_latest", fails="newest")
def numbers_without_zeros(directory):
    """Leaves out step-0012.pt."""
    return _newest(path for path in _numbered(directory) if not path.name.startswith("step-0"))


def _by_number(paths):
    return sorted(paths, key=lambda path: int(re.search(r"\d+", path.name)[0]), reverse=True)


@wrong("load_latest", fails="other files")
def begins_like_a_checkpoint(directory):
    """step-12-best.pt does, too."""
    paths = [path for path in directory.glob("step-*.pt") if re.match(r"step-\d+", path.name)]
    return _newest(_by_number(paths))


@wrong("load_latest", fails="other files")
def what_stands_between_hyphens(directory):
    """The second part of step-12-best is a number."""
    paths = [path for path in directory.glob("step-*.pt") if path.stem.split("-")[1].isdigit()]
    return _newest(_by_number(paths))


@wrong("load_latest", fails="other files")
def in_all_folders(directory):
    """What has been put aside in a folder of the folder."""
    found = {path: re.fullmatch(r"step-([0-9]+)\.pt", path.name) for path in directory.rglob("*")}
    numbers = {path: int(match[1]) for path, match in found.items() if match}
    return _newest(sorted(numbers, key=numbers.get, reverse=True))


@wrong("load_latest", fails="other files")
def any_letter_for_a_dot(directory):
    """In a pattern a dot is any letter."""
    found = {path: re.fullmatch(r"step-(\d+).pt", path.name) for path in directory.glob("*")}
    numbers = {path: int(match[1]) for path, match in found.items() if match}
    return _newest(sorted(numbers, key=numbers.get, reverse=True))


@wrong("load_latest", fails="other files")
def something_is_there(directory):
    """A folder that is not empty need not hold a checkpoint: the first save may have been killed."""
    if not directory.is_dir() or not os.listdir(directory):
        return None
    paths = _numbered(directory)
    return _newest([paths[0], *paths[1:]])


@wrong("load_latest", fails="newest")
def what_the_state_says(directory):
    """What a state is called by is whoever's affair who saves it."""
    held = {}
    for path in _numbered(directory):
        try:
            state = _whole(path)
            held[state["step"]] = state
        except Exception as error:
            warnings.warn(f"{path.name}: {error}", stacklevel=2)
    return held[max(held)] if held else None


@wrong("load_latest", fails="newest")
def none_is_zero(directory):
    """`if not newest`: step 0 is a step."""
    newest = max((int(path.stem.removeprefix("step-")) for path in _numbered(directory)), default=0)
    return _newest(_numbered(directory)) if newest else None


@wrong("load_latest", fails="torn files")
def one_step_before(directory):
    """The one before step 30 is step 20, where every tenth is saved."""
    paths = {int(path.stem.removeprefix("step-")): path for path in _numbered(directory)}
    step = max(paths, default=0)
    while step in paths:
        try:
            return _whole(paths[step])
        except Exception as error:
            warnings.warn(f"{paths[step].name}: {error}", stacklevel=2)
            step -= 1
    return None


@wrong("load_latest", fails="torn files")
def gives_up_after_the_third(directory):
    """Three are kept, as a rule."""
    return _newest(_numbered(directory)[:3])


@wrong("load_latest", fails="damaged inside")
def the_largest_part(directory):
    """The weights' checksum, and no other one's."""
    for path in _numbered(directory):
        try:
            archive = zipfile.ZipFile(path)
            archive.read(max(archive.infolist(), key=lambda part: part.file_size))
            return torch.load(path)
        except Exception as error:
            warnings.warn(f"{path.name}: {error}", stacklevel=2)
    return None


@wrong("load_latest", fails="damaged inside")
def tensors_only(directory):
    """What is no tensor can be damaged as well."""
    for path in _numbered(directory):
        try:
            archive = zipfile.ZipFile(path)
            for name in archive.namelist():
                if "/data/" in name:
                    archive.read(name)
            return torch.load(path)
        except Exception as error:
            warnings.warn(f"{path.name}: {error}", stacklevel=2)
    return None


@wrong("load_latest", fails="damaged inside")
def checks_the_newest_only(directory):
    """The one before it may be damaged as well."""
    paths = _numbered(directory)
    for path in paths:
        try:
            return _whole(path) if path == paths[0] else torch.load(path)
        except Exception as error:
            warnings.warn(f"{path.name}: {error}", stacklevel=2)
    return None


@wrong("load_latest", fails="damaged inside")
def the_last_one_that_was_loaded(directory):
    """Where no checkpoint is whole, a damaged one is still in the variable."""
    state = None
    for path in _numbered(directory):
        try:
            state = torch.load(path)
            if zipfile.ZipFile(path).testzip() is None:
                break
            warnings.warn(f"{path.name} is damaged", stacklevel=2)
        except Exception as error:
            warnings.warn(f"{path.name}: {error}", stacklevel=2)
    return state


@wrong("load_latest", fails="tells and keeps")
def clears_unfinished_saves(directory):
    """Another process may be writing one of them."""
    for path in directory.glob("*.tmp"):
        if path.is_file():
            path.unlink()
    return _newest(_numbered(directory))


@wrong("load_latest", fails="tells and keeps")
def tells_of_it_when_it_has_one(directory):
    """Where none is left, a training begins at step 0, and nobody knows why."""
    skipped = []
    for path in _numbered(directory):
        try:
            state = _whole(path)
        except Exception:
            skipped.append(path.name)
            continue
        if skipped:
            warnings.warn(f"{', '.join(skipped)} cannot be read", stacklevel=2)
        return state
    return None


@wrong("load_latest", fails="tells and keeps")
def only_prints_it(directory):
    """A line among thousands of others; a warning can be counted, filtered, or made an error."""
    for path in _numbered(directory):
        try:
            return _whole(path)
        except Exception as error:
            print(f"{path.name} is skipped: {error}")
    return None


# --------------------------------------------------------------------------------------------------- resume


def _train(training, directory, save_every, save, load_latest, **options):
    """Right, but for what the options leave out."""
    samples, size = len(training.samples), training.batch_size
    an_epoch = options.get("an_epoch", math.ceil(samples / size))
    last = training.epochs * an_epoch
    state = load_latest(directory)
    step = 0 if state is None else state["step"]
    if state is not None:
        training.model.load_state_dict(state["model"])
        if "optimizer" in state:
            training.optimizer.load_state_dict(state["optimizer"])
        if "random" in state:
            torch.set_rng_state(state["random"])
    parts = options.get("parts", ("optimizer", "random"))
    for now in range(options.get("begin", lambda step: step)(step), last):
        epoch, position = divmod(now, an_epoch)
        order = options.get("order", _order)(epoch, samples)
        training.train_step(training.samples[order[position * size :][:size]])
        if (now + 1) % save_every == 0 or now + 1 == last:
            whole = {"optimizer": training.optimizer.state_dict(), "random": torch.get_rng_state()}
            kept = {part: whole[part] for part in parts}
            state = {"step": now + 1, "model": training.model.state_dict()} | kept
            save(directory / f"step-{now + 1}.pt", state)


def _order(epoch, samples):
    return torch.randperm(samples, generator=torch.Generator().manual_seed(epoch))


@wrong("resume", fails="trains")
def drops_the_last_batch(training, directory, save_every, save, load_latest):
    """len(samples) // batch_size steps an epoch."""
    an_epoch = len(training.samples) // training.batch_size
    _train(training, directory, save_every, save, load_latest, an_epoch=an_epoch)


@wrong("resume", fails="trains")
def always_one_short_batch(training, directory, save_every, save, load_latest):
    """len(samples) // batch_size + 1 steps an epoch: one without samples, where all batches are full."""
    an_epoch = len(training.samples) // training.batch_size + 1
    _train(training, directory, save_every, save, load_latest, an_epoch=an_epoch)


@wrong("resume", fails="trains")
def rounds_the_steps(training, directory, save_every, save, load_latest):
    """3.2 batches are four, and not three."""
    an_epoch = round(len(training.samples) / training.batch_size)
    _train(training, directory, save_every, save, load_latest, an_epoch=an_epoch)


@wrong("resume", fails="shuffles each epoch")
def one_order_for_all(training, directory, save_every, save, load_latest):
    """The generator is seeded with the same number in every epoch."""
    _train(training, directory, save_every, save, load_latest, order=lambda _, samples: _order(7, samples))


@wrong("resume", fails="shuffles each epoch")
def not_shuffled(training, directory, save_every, save, load_latest):
    """The order of the samples, which is easy to resume."""
    _train(training, directory, save_every, save, load_latest, order=lambda _, samples: torch.arange(samples))


@wrong("resume", fails="shuffles each epoch")
def orders_come_back(training, directory, save_every, save, load_latest):
    """Three orders, again and again."""
    _train(
        training, directory, save_every, save, load_latest, order=lambda e, samples: _order(e % 3, samples)
    )


@wrong("resume", fails="shuffles each epoch")
def begins_elsewhere(training, directory, save_every, save, load_latest):
    """One order, which each epoch begins one sample later."""
    _train(
        training,
        directory,
        save_every,
        save,
        load_latest,
        order=lambda e, samples: _order(0, samples).roll(e),
    )


@wrong("resume", fails="shuffles each epoch")
def to_and_fro(training, directory, save_every, save, load_latest):
    """One order, forwards and backwards by turns."""
    turned = (lambda order: order, lambda order: order.flip(0))
    _train(
        training,
        directory,
        save_every,
        save,
        load_latest,
        order=lambda e, samples: turned[e % 2](_order(0, samples)),
    )


@wrong("resume", fails="shuffles each epoch")
def shuffles_the_batches(training, directory, save_every, save, load_latest):
    """The batches come in another order; what is in one stays together for ever."""

    def order(epoch, samples):
        batches = torch.arange(samples).split(training.batch_size)
        return torch.cat([batches[i] for i in _order(epoch, len(batches)).tolist()])

    _train(training, directory, save_every, save, load_latest, order=order)


@wrong("resume", fails="saves")
def counts_in_each_epoch(training, directory, save_every, save, load_latest):
    """Saves by the number of the batch in its epoch, which each epoch counts anew."""
    samples, size = len(training.samples), training.batch_size
    for epoch in range(training.epochs):
        for position, batch in enumerate(_order(epoch, samples).split(size)):
            training.train_step(training.samples[batch])
            if position % save_every == 0:
                save(directory / f"step-{position}.pt", {"model": training.model.state_dict()})


@wrong("resume", fails="saves")
def forgets_the_last(training, directory, save_every, save, load_latest):
    """What comes after the last multiple of save_every is never saved."""

    def only_multiples(path, state):
        if state["step"] % save_every == 0:
            save(path, state)

    _train(training, directory, save_every, only_multiples, load_latest)
    if math.ceil(len(training.samples) / training.batch_size) * training.epochs % save_every == 0:
        save(directory / "last.pt", {})


@wrong("resume", fails="saves")
def the_last_is_another_case(training, directory, save_every, save, load_latest):
    """Leaves it to the line after the loop, which is for a last step that is no multiple."""
    last = training.epochs * math.ceil(len(training.samples) / training.batch_size)

    def save_most(path, state):
        if state["step"] < last or last % save_every:
            save(path, state)

    _train(training, directory, save_every, save_most, load_latest)


@wrong("resume", fails="saves")
def saves_under_a_text(training, directory, save_every, save, load_latest):
    """save gets a text, which has no folder and no name."""
    as_text = lambda path, state: save(str(path), state)  # noqa: E731
    _train(training, directory, save_every, as_text, load_latest)


@wrong("resume", fails="goes on")
def weights_only(training, directory, save_every, save, load_latest):
    """Loads the weights and begins at step 0."""
    _train(training, directory, save_every, save, load_latest, begin=lambda _: 0)


@wrong("resume", fails="goes on")
def repeats_a_step(training, directory, save_every, save, load_latest):
    """Takes the number of steps done for the last step's number, and makes that again."""
    _train(training, directory, save_every, save, load_latest, begin=lambda step: max(0, step - 1))


@wrong("resume", fails="goes on")
def skips_a_step(training, directory, save_every, save, load_latest):
    """Goes on after the next step."""
    _train(training, directory, save_every, save, load_latest, begin=lambda step: step + 1 if step else 0)


@wrong("resume", fails="goes on")
def repeats_the_epoch(training, directory, save_every, save, load_latest):
    """Goes on at the beginning of the epoch, as scripts do that save the epoch's number."""
    an_epoch = math.ceil(len(training.samples) / training.batch_size)
    begin = lambda step: step // an_epoch * an_epoch  # noqa: E731
    _train(training, directory, save_every, save, load_latest, begin=begin)


@wrong("resume", fails="data position")
def draws_the_order_from_the_global_state(training, directory, save_every, save, load_latest):
    """Each start deals the rest of the epoch in another order: samples come twice, others never."""
    samples, size = len(training.samples), training.batch_size
    an_epoch = math.ceil(samples / size)
    state = load_latest(directory) or {"step": 0}
    if state["step"]:
        training.model.load_state_dict(state["model"])
        training.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
    for epoch in range(state["step"] // an_epoch, training.epochs):
        for position, batch in enumerate(torch.randperm(samples).split(size)):
            step = epoch * an_epoch + position
            if step < state["step"]:
                continue
            training.train_step(training.samples[batch])
            if (step + 1) % save_every == 0 or step + 1 == an_epoch * training.epochs:
                kept = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
                kept |= {"step": step + 1, "random": torch.get_rng_state()}
                save(directory / f"step-{step + 1}.pt", kept)


@wrong("resume", fails="data position")
def seeds_with_a_salted_hash(training, directory, save_every, save, load_latest):
    """The next process hashes the same text with another salt."""
    order = lambda epoch, samples: _order(hash(f"epoch {epoch}") % 2**63, samples)  # noqa: E731
    _train(training, directory, save_every, save, load_latest, order=order)


@wrong("resume", fails="data position")
def seeds_with_the_start(training, directory, save_every, save, load_latest):
    """The generator that shuffles counts the epochs of this process, not of the training."""
    begun = (load_latest(directory) or {"step": 0})["step"]
    order = lambda epoch, samples: _order(1000 * begun + epoch, samples)  # noqa: E731
    _train(training, directory, save_every, save, load_latest, order=order)


@wrong("resume", fails="model and optimizer")
def forgets_the_optimizer(training, directory, save_every, save, load_latest):
    """The momentum begins at zero again."""
    _train(training, directory, save_every, save, load_latest, parts=("random",))


@wrong("resume", fails="model and optimizer")
def loads_nothing_but_the_step(training, directory, save_every, save, load_latest):
    """Knows where it was, and has forgotten what it learnt."""
    kept = {name: getattr(training, name).state_dict() for name in ("model", "optimizer")}
    fresh = {name: {key: _copy(value) for key, value in state.items()} for name, state in kept.items()}

    def load(directory):
        state = load_latest(directory)
        return state and state | fresh

    _train(training, directory, save_every, save, load)


def _copy(value):
    return value.clone() if isinstance(value, torch.Tensor) else value


@wrong("resume", fails="random state")
def forgets_the_random_state(training, directory, save_every, save, load_latest):
    """Dropout draws after the restart what it drew at the beginning."""
    _train(training, directory, save_every, save, load_latest, parts=("optimizer",))


@wrong("resume", fails="random state")
def seeds_everything_with_the_epoch(training, directory, save_every, save, load_latest):
    """Finds the epoch's order again by torch.manual_seed, and all steps of the epoch drop the same units."""

    def order(epoch, samples):
        torch.manual_seed(epoch)
        return torch.randperm(samples)

    _train(training, directory, save_every, save, load_latest, order=order)


@wrong("resume", fails="random state")
def random_state_of_the_beginning(training, directory, save_every, save, load_latest):
    """Saves the random state that it began with."""
    begin = torch.get_rng_state()
    _train(
        training,
        directory,
        save_every,
        lambda path, state: save(path, state | {"random": begin}),
        load_latest,
    )


@wrong("resume", fails="killed anywhere")
def trains_on_after_the_end(training, directory, save_every, save, load_latest):
    """Started again after the end, it makes the last step once more."""
    an_epoch = math.ceil(len(training.samples) / training.batch_size)
    last = an_epoch * training.epochs
    begin = lambda step: min(step, last - 1)  # noqa: E731
    _train(training, directory, save_every, save, load_latest, begin=begin)


@wrong("resume", fails="killed anywhere")
def the_epoch_that_has_just_ended(training, directory, save_every, save, load_latest):
    """Saves the number of the epoch, of which nothing is left where the checkpoint is that of its last step:
    there it begins the same epoch again.
    """
    samples, size = len(training.samples), training.batch_size
    an_epoch = math.ceil(samples / size)
    state = load_latest(directory) or {"step": 0, "epoch": 0}
    step, last = state["step"], training.epochs * an_epoch
    if "model" in state:
        training.model.load_state_dict(state["model"])
        training.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
    skipped = step % an_epoch
    for epoch in range(state["epoch"], training.epochs if step < last else 0):
        for batch in _order(epoch, samples).split(size)[skipped:]:
            training.train_step(training.samples[batch])
            step += 1
            if step % save_every == 0 or step == last:
                whole = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
                whole |= {"step": step, "epoch": epoch, "random": torch.get_rng_state()}
                save(directory / f"step-{step}.pt", whole)
        skipped = 0


@wrong("resume", fails="killed anywhere")
def nothing_left_of_the_order(training, directory, save_every, save, load_latest):
    """Saves what is left of the order: at the end of an epoch that is nothing, and no reason to draw anew."""
    samples, size = len(training.samples), training.batch_size
    last = training.epochs * math.ceil(samples / size)
    state = load_latest(directory) or {"step": 0, "left": None}
    step, left = state["step"], state["left"]
    if "model" in state:
        training.model.load_state_dict(state["model"])
        training.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
    while step < last:
        left = torch.randperm(samples) if left is None else left
        batch, left = left[:size], left[size:]
        training.train_step(training.samples[batch])
        step += 1
        if step % save_every == 0 or step == last:
            whole = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
            whole |= {"step": step, "left": left.clone(), "random": torch.get_rng_state()}
            save(directory / f"step-{step}.pt", whole)
        left = left if len(left) else None


_orders_of_epochs = {}


@wrong("resume", fails="data position")
def orders_that_stay(training, directory, save_every, save, load_latest):
    """Drawn once, and kept in a variable of the module, which ends with the process."""

    def order(epoch, samples):
        return _orders_of_epochs.setdefault((epoch, samples), torch.randperm(samples))

    _train(training, directory, save_every, save, load_latest, order=order)


_of_the_module = torch.Generator().manual_seed(0)


@wrong("resume", fails="data position")
def a_generator_that_goes_on(training, directory, save_every, save, load_latest):
    """A generator of the module draws an order for each epoch that is trained: a new process begins anew."""
    drawn = {}

    def order(epoch, samples):
        if epoch not in drawn:
            drawn[epoch] = torch.randperm(samples, generator=_of_the_module)
        return drawn[epoch]

    _train(training, directory, save_every, save, load_latest, order=order)


@wrong("resume", fails="data position")
def orders_of_python(training, directory, save_every, save, load_latest):
    """All orders at the start, from Python's own generator, which begins anywhere."""
    samples = len(training.samples)
    orders = [torch.tensor(random.sample(range(samples), samples)) for _ in range(training.epochs)]
    _train(training, directory, save_every, save, load_latest, order=lambda epoch, samples: orders[epoch])


@wrong("resume", fails="data position")
def orders_of_the_hour(training, directory, save_every, save, load_latest):
    """Another order each time that it is started: the time is another one after a restart, too."""
    seed = int(time.time())
    _train(training, directory, save_every, save, load_latest, order=lambda epoch, n: _order(seed + epoch, n))


@wrong("resume", fails="data position")
def orders_of_numpy(training, directory, save_every, save, load_latest):
    """All orders at the start, from a generator that nobody has seeded."""
    orders = [torch.as_tensor(np.random.permutation(len(training.samples))) for _ in range(training.epochs)]
    _train(training, directory, save_every, save, load_latest, order=lambda epoch, samples: orders[epoch])


def _by_epochs(training, directory, save_every, save, load_latest, counted_from, begun=lambda epoch: 0):
    """Right if positions are counted from what was skipped, and epochs from 0."""
    samples, size = len(training.samples), training.batch_size
    last = training.epochs * math.ceil(samples / size)
    state = load_latest(directory) or {"step": 0, "epoch": 0, "position": 0}
    step, skipped = state["step"], state["position"]
    if "model" in state:
        training.model.load_state_dict(state["model"])
        training.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
    for epoch in range(state["epoch"], training.epochs if step < last else 0):
        rest = _order(epoch, samples).split(size)[skipped:]
        for position, batch in enumerate(rest, counted_from(skipped) + 1):
            training.train_step(training.samples[batch])
            step += 1
            if step % save_every == 0 or step == last:
                whole = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
                whole |= {"step": step, "epoch": epoch - begun(state["epoch"]), "position": position}
                save(directory / f"step-{step}.pt", whole | {"random": torch.get_rng_state()})
        skipped = 0


@wrong("resume", fails="killed anywhere")
def epochs_of_this_process(training, directory, save_every, save, load_latest):
    """Saves how many epochs ago it was started: after the next restart the epoch is another one."""
    _by_epochs(
        training, directory, save_every, save, load_latest, lambda skipped: skipped, begun=lambda epoch: epoch
    )


@wrong("resume", fails="killed anywhere")
def where_a_file_is_there_is_a_state(training, directory, save_every, save, load_latest):
    """The only file may be torn."""

    def load(directory):
        return load_latest(directory) | {} if any(directory.glob("step-*.pt")) else None

    _train(training, directory, save_every, save, load)


@wrong("resume", fails="killed anywhere")
def counts_from_the_restart(training, directory, save_every, save, load_latest):
    """Of an epoch that it has not begun itself it saves how many batches it made, not how many there were."""
    _by_epochs(training, directory, save_every, save, load_latest, counted_from=lambda skipped: 0)


@wrong("resume", fails="killed anywhere")
def the_step_of_the_newest_name(training, directory, save_every, save, load_latest):
    """Reads the step from the files' names: but the newest may be damaged, and the one before it loaded."""

    def load(directory):
        state = load_latest(directory)
        if state is not None:
            names = [path.stem for path in directory.glob("step-*.pt")]
            state["step"] = max(int(name.removeprefix("step-")) for name in names)
        return state

    _train(training, directory, save_every, save, load)


@wrong("resume", fails="killed anywhere")
def a_file_for_the_random_state(training, directory, save_every, save, load_latest):
    """Another file beside the checkpoint: where the newest is damaged, it is that of a later step."""

    def save_both(path, state):
        save(path, state)
        torch.save(state["random"], directory / "random")

    def load_both(directory):
        state = load_latest(directory)
        return state and state | {"random": torch.load(directory / "random")}

    _train(training, directory, save_every, save_both, load_both)


@wrong("resume", fails="killed anywhere")
def saves_the_end_only(training, directory, save_every, save, load_latest):
    """Whoever has gone on once saves no more before the end."""
    again = load_latest(directory) is not None
    last = training.epochs * math.ceil(len(training.samples) / training.batch_size)

    def at_the_end(path, state):
        if not again or state["step"] == last:
            save(path, state)

    _train(training, directory, save_every, at_the_end, load_latest)


@wrong("resume", fails="killed anywhere")
def passes_on_what_it_loaded(training, directory, save_every, save, load_latest):
    """Saves the random state with which it went on."""
    state = load_latest(directory)
    loaded = {} if state is None else {"random": state["random"]}
    _train(training, directory, save_every, lambda path, state: save(path, state | loaded), load_latest)


# ------------------------------------------------------------------------------------------- save_on_signal


def _noted(set_handler, *numbers):
    """Right: a list that is empty until a signal has come."""
    came = []
    for number in numbers or (signal.SIGTERM, signal.SIGUSR1):
        set_handler(number, lambda number, frame: came.append(number))
    return came


def _total(value, op=dist.ReduceOp.SUM):
    """Right: a number of all ranks."""
    told = torch.tensor(float(value))
    dist.all_reduce(told, op)
    return told.item()


def _save_on(rank, save, done):
    """Right: one rank saves."""
    if dist.get_rank() == rank:
        save(done)
    return done


def _train_until(told, train_step, steps):
    """Right: trains until told(number of steps made); that number."""
    for done in range(1, steps + 1):
        train_step(done - 1)
        if told(done):
            break
    return done


def _until_told(train_step, steps, came):
    """Right: until all ranks hear that one of them has had a signal."""
    return _train_until(lambda done: _total(bool(came)), train_step, steps)


@wrong("save_on_signal", fails="trains to the end")
def one_step_short(train_step, steps, save, set_handler):
    """Returns the number of the last step."""
    came, step = _noted(set_handler), -1
    while step + 1 < steps and not (step >= 0 and _total(bool(came))):
        step += 1
        train_step(step)
    return _save_on(0, save, step)


@wrong("save_on_signal", fails="trains to the end")
def two_steps_at_least(train_step, steps, save, set_handler):
    """Asks whether to go on before it looks whether there is a step left."""
    came = _noted(set_handler)
    train_step(0)
    done = 1
    while not _total(bool(came)):
        train_step(done)
        done += 1
        if done == steps:
            break
    return _save_on(0, save, done)


@wrong("save_on_signal", fails="trains to the end")
def counts_from_one(train_step, steps, save, set_handler):
    """The first step is step 0."""
    came = _noted(set_handler)
    for done in range(1, steps + 1):
        train_step(done)
        if _total(bool(came)):
            break
    return _save_on(0, save, done)


@wrong("save_on_signal", fails="trains to the end")
def makes_no_step(train_step, steps, save, set_handler):
    """Only says that all is done."""
    return _save_on(0, save, steps)


@wrong("save_on_signal", fails="all stop after the same step")
def each_for_itself(train_step, steps, save, set_handler):
    """The others wait for it in the next step."""
    came = _noted(set_handler)
    done = _train_until(lambda done: came, train_step, steps)
    return _save_on(0, save, done)


@wrong("save_on_signal", fails="both signals")
def never_listens(train_step, steps, save, set_handler):
    """A signal without a handler ends the process."""
    for step in range(steps):
        train_step(step)
    return _save_on(0, save, steps)


@wrong("save_on_signal", fails="both signals")
def ignores_signals(train_step, steps, save, set_handler):
    """Until SIGKILL comes, which nobody can ignore."""
    for number in (signal.SIGTERM, signal.SIGUSR1):
        set_handler(number, signal.SIG_IGN)
    for step in range(steps):
        train_step(step)
    return _save_on(0, save, steps)


@wrong("save_on_signal", fails="both signals")
def one_kind_of_signal(train_step, steps, save, set_handler):
    """SIGTERM ends it as before."""
    came = _noted(set_handler, signal.SIGUSR1)
    return _save_on(0, save, _until_told(train_step, steps, came))


@wrong("save_on_signal", fails="all stop after the same step")
def rank_0_decides(train_step, steps, save, set_handler):
    """Nobody hears of a signal that another rank has."""
    came = _noted(set_handler)
    for done in range(1, steps + 1):
        train_step(done - 1)
        told = torch.tensor(float(bool(came)))
        dist.broadcast(told, 0)
        if told.item():
            break
    return _save_on(0, save, done)


@wrong("save_on_signal", fails="all stop after the same step")
def when_all_have_heard(train_step, steps, save, set_handler):
    """Some ranks never hear of it."""
    came = _noted(set_handler)
    done = _train_until(lambda done: _total(bool(came), dist.ReduceOp.MIN), train_step, steps)
    return _save_on(0, save, done)


@wrong("save_on_signal", fails="all stop after the same step")
def exactly_one(train_step, steps, save, set_handler):
    """Slurm sends it to all ranks."""
    came = _noted(set_handler)
    done = _train_until(lambda done: _total(bool(came)) == 1, train_step, steps)
    return _save_on(0, save, done)


@wrong("save_on_signal", fails="all stop after the same step")
def out_of_the_middle(train_step, steps, save, set_handler):
    """An exception in the handler leaves the step where it is."""

    class Told(Exception):
        pass

    def leave(number, frame):
        raise Told

    for number in (signal.SIGTERM, signal.SIGUSR1):
        set_handler(number, leave)
    done = 0
    try:
        for done in range(1, steps + 1):
            train_step(done - 1)
    except Told:
        done -= 1
    return _save_on(0, save, done)


@wrong("save_on_signal", fails="all stop after the same step")
def asks_in_the_handler(train_step, steps, save, set_handler):
    """The others do not take part in a collective that they know nothing of."""
    came = []

    def tell(number, frame):
        came.append(_total(1))

    for number in (signal.SIGTERM, signal.SIGUSR1):
        set_handler(number, tell)
    done = _train_until(lambda done: came, train_step, steps)
    return _save_on(0, save, done)


@wrong("save_on_signal", fails="all stop after the same step")
def every_third_step(train_step, steps, save, set_handler):
    """Asks seldom, to be cheap; a step may take a minute."""
    came = _noted(set_handler)
    done = _train_until(lambda done: done % 3 == 0 and _total(bool(came)), train_step, steps)
    return _save_on(0, save, done)


@wrong("save_on_signal", fails="all stop after the same step")
def two_more_steps(train_step, steps, save, set_handler):
    """Goes on after all know of it."""
    came, left = _noted(set_handler), steps
    for done in range(1, steps + 1):
        train_step(done - 1)
        left -= 1
        if _total(bool(came)):
            left = min(left, 2)
        if not left:
            break
        if left < steps - done:
            came.clear()
    return _save_on(0, save, done)


@wrong("save_on_signal", fails="one writes")
def all_write(train_step, steps, save, set_handler):
    """All ranks write one file at the same time."""
    came = _noted(set_handler)
    done = _until_told(train_step, steps, came)
    save(done)
    return done


@wrong("save_on_signal", fails="one writes")
def saves_in_the_handler(train_step, steps, save, set_handler):
    """In the middle of a step, in which the weights are half old and half new."""
    came, made = [], []

    def keep(number, frame):
        came.append(number)
        save(len(made))

    for number in (signal.SIGTERM, signal.SIGUSR1):
        set_handler(number, keep)
    for done in range(1, steps + 1):
        train_step(done - 1)
        made.append(done)
        if _total(bool(came)):
            break
    else:
        _save_on(0, save, done)
    return done


@wrong("save_on_signal", fails="one writes")
def who_heard_of_it(train_step, steps, save, set_handler):
    """Those to whom the signal came, if any."""
    came = _noted(set_handler)
    done = _until_told(train_step, steps, came)
    if came:
        save(done)
    return done


@wrong("save_on_signal", fails="one writes")
def only_when_stopped(train_step, steps, save, set_handler):
    """What was trained to the end is not saved."""
    came = _noted(set_handler)
    for done in range(1, steps + 1):
        train_step(done - 1)
        if _total(bool(came)):
            return _save_on(0, save, done)
    return done


@wrong("save_on_signal", fails="one writes")
def number_of_the_last_step(train_step, steps, save, set_handler):
    """Saves the number of the last step, not how many there were."""
    came = _noted(set_handler)
    for step in range(steps):
        train_step(step)
        if _total(bool(came)):
            break
    _save_on(0, save, step)
    return step + 1


@wrong("save_on_signal", fails="one writes")
def saves_each_step(train_step, steps, save, set_handler):
    """So it needs no signal; it only takes most of the time."""
    came = _noted(set_handler)
    for done in range(1, steps + 1):
        train_step(done - 1)
        _save_on(0, save, done)
        if _total(bool(came)):
            break
    return done


@wrong("save_on_signal", fails="whenever it comes")
def forgets_what_came_first(train_step, steps, save, set_handler):
    """A signal between the two lines is forgotten."""
    asked = []

    def note(number, frame):
        asked[:] = [True]

    for number in (signal.SIGTERM, signal.SIGUSR1):
        set_handler(number, note)
    asked[:] = [False]
    done = _train_until(lambda done: _total(asked[0]), train_step, steps)
    return _save_on(0, save, done)


@wrong("save_on_signal", fails="whenever it comes")
def its_own_eyes_too(train_step, steps, save, set_handler):
    """What came after the sum was taken is known to this rank alone."""
    came = _noted(set_handler)
    done = _train_until(lambda done: _total(bool(came)) or came, train_step, steps)
    return _save_on(0, save, done)


@wrong("save_on_signal", fails="whenever it comes")
def saves_twice_at_the_end(train_step, steps, save, set_handler):
    """A signal in the last step, and the end."""
    came = _noted(set_handler)
    for done in range(1, steps + 1):
        train_step(done - 1)
        if _total(bool(came)):
            _save_on(0, save, done)
            break
    if done == steps:
        _save_on(0, save, done)
    return done


@wrong("save_on_signal", fails="whenever it comes")
def impatient(train_step, steps, save, set_handler):
    """The second signal leaves at once."""
    came = []

    def note(number, frame):
        if came:
            raise SystemExit(1)
        came.append(number)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        set_handler(number, note)
    return _save_on(0, save, _until_told(train_step, steps, came))


@wrong("save_on_signal", fails="whenever it comes")
def leaves_all_as_it_was(train_step, steps, save, set_handler):
    """Sets the handlers back when all has been saved, but before it returns."""
    came = []
    note = lambda number, frame: came.append(number)  # noqa: E731
    before = {number: set_handler(number, note) for number in (signal.SIGTERM, signal.SIGUSR1)}
    done = _save_on(0, save, _until_told(train_step, steps, came))
    dist.barrier()
    for number, handler in before.items():
        set_handler(number, handler)
    return done


@wrong("save_on_signal", fails="whenever it comes")
def hears_no_more(train_step, steps, save, set_handler):
    """Ignores signals when it has saved: but another training may follow that has to hear of them."""
    done = _save_on(0, save, _until_told(train_step, steps, _noted(set_handler)))
    for number in (signal.SIGTERM, signal.SIGUSR1):
        set_handler(number, signal.SIG_IGN)
    return done


@wrong("save_on_signal", fails="whenever it comes")
def no_handler_while_it_saves(train_step, steps, save, set_handler):
    """A signal during the save ends the process in its middle."""
    came = _noted(set_handler)
    done = _until_told(train_step, steps, came)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        set_handler(number, signal.SIG_DFL)
    return _save_on(0, save, done)


@wrong("save_on_signal", fails="one number per step")
def asks_and_waits(train_step, steps, save, set_handler):
    """A barrier in each step that nobody needs."""
    came = _noted(set_handler)
    for done in range(1, steps + 1):
        train_step(done - 1)
        dist.barrier()
        if _total(bool(came)):
            break
    return _save_on(0, save, done)


@wrong("save_on_signal", fails="one number per step")
def tells_all_about_it(train_step, steps, save, set_handler):
    """Which rank has heard of what: two numbers a rank, and nobody asks."""
    came = _noted(set_handler)
    for done in range(1, steps + 1):
        train_step(done - 1)
        told = torch.zeros(dist.get_world_size(), 2)
        told[dist.get_rank(), 0] = bool(came)
        dist.all_reduce(told)
        if told.any():
            break
    return _save_on(0, save, done)


@wrong("save_on_signal", fails="whenever it comes")
def notes_it_for_ever(train_step, steps, save, set_handler):
    """A list of the module: the next training in this process stops after its first step."""
    for number in (signal.SIGTERM, signal.SIGUSR1):
        set_handler(number, lambda number, frame: _noted_for_ever.append(number))
    return _save_on(0, save, _until_told(train_step, steps, _noted_for_ever))


_noted_for_ever = []


_was_asked = False


def _note_in_the_module(number, frame):
    global _was_asked
    _was_asked = True


@wrong("save_on_signal", fails="whenever it comes")
def a_variable_of_the_module(train_step, steps, save, set_handler):
    """Set back at the start; but ranks that are threads may share it, and one sets it back for another."""
    global _was_asked
    _was_asked = False
    for number in (signal.SIGTERM, signal.SIGUSR1):
        set_handler(number, _note_in_the_module)
    return _save_on(0, save, _train_until(lambda done: _total(_was_asked), train_step, steps))


@wrong("save_on_signal", fails="whenever it comes")
def a_default_value(train_step, steps, save, set_handler, came=[]):  # noqa: B006
    """It is made once, and all calls have it, those of other ranks too."""
    came.clear()
    for number in (signal.SIGTERM, signal.SIGUSR1):
        set_handler(number, lambda number, frame: came.append(number))
    return _save_on(0, save, _until_told(train_step, steps, came))


class _Stop:
    asked = False

    @classmethod
    def note(cls, number, frame):
        cls.asked = True


@wrong("save_on_signal", fails="whenever it comes")
def a_variable_of_a_class(train_step, steps, save, set_handler):
    """Ranks that are threads have their classes in common: one sets back what was noted for another."""
    _Stop.asked = False
    for number in (signal.SIGTERM, signal.SIGUSR1):
        set_handler(number, _Stop.note)
    return _save_on(0, save, _train_until(lambda done: _total(_Stop.asked), train_step, steps))


_told_to_stop = threading.Event()


@wrong("save_on_signal", fails="whenever it comes")
def an_event_of_the_module(train_step, steps, save, set_handler):
    """There is one of it for all simulated ranks."""
    _told_to_stop.clear()
    for number in (signal.SIGTERM, signal.SIGUSR1):
        set_handler(number, lambda number, frame: _told_to_stop.set())
    return _save_on(0, save, _train_until(lambda done: _total(_told_to_stop.is_set()), train_step, steps))


@wrong("save_on_signal", fails="one number per step")
def meets_in_many_barriers(train_step, steps, save, set_handler):
    """When it has been stopped, nobody seems to be in a hurry."""
    done = _until_told(train_step, steps, _noted(set_handler))
    if done < steps:
        for _ in range(4):
            dist.barrier()
    return _save_on(0, save, done)


@wrong("save_on_signal", fails="one number per step")
def by_objects(train_step, steps, save, set_handler):
    """Pickles, sends their lengths, then sends them."""
    came = _noted(set_handler)
    for done in range(1, steps + 1):
        train_step(done - 1)
        told = [None] * dist.get_world_size()
        dist.all_gather_object(told, bool(came))
        if any(told):
            break
    return _save_on(0, save, done)


@wrong("save_on_signal", fails="hundreds of ranks")
def notes_of_one_byte(train_step, steps, save, set_handler):
    """Slurm sends the signal to all: where 256 ranks each note 1, the sum of bytes is 0."""
    came = _noted(set_handler)

    def told(done):
        note = torch.tensor(bool(came), dtype=torch.uint8)
        dist.all_reduce(note)
        return note.item()

    return _save_on(0, save, _train_until(told, train_step, steps))


@wrong("save_on_signal", fails="all stop after the same step")
def one_or_all(train_step, steps, save, set_handler):
    """Two of three are neither."""
    came = _noted(set_handler)
    ranks = dist.get_world_size()
    done = _train_until(lambda done: _total(bool(came)) in (1, ranks), train_step, steps)
    return _save_on(0, save, done)


@wrong("save_on_signal", fails="hundreds of ranks")
def notes_of_a_truth_value(train_step, steps, save, set_handler):
    """Gloo takes truth values for bytes: 256 of them are none."""
    came = _noted(set_handler)

    def told(done):
        note = torch.tensor([bool(came)])
        dist.all_reduce(note)
        return note.item()

    return _save_on(0, save, _train_until(told, train_step, steps))


@wrong("save_on_signal", fails="one number per step")
def a_number_a_signal(train_step, steps, save, set_handler):
    """Which of the two it was, nobody asks."""
    came = _noted(set_handler)

    def told(done):
        notes = torch.tensor([float(number in came) for number in (signal.SIGTERM, signal.SIGUSR1)])
        dist.all_reduce(notes)
        return notes.sum().item()

    return _save_on(0, save, _train_until(told, train_step, steps))


@wrong("save_on_signal", fails="whenever it comes")
def waits_for_its_own_lock(train_step, steps, save, set_handler):
    """The handler runs in the same thread: where that holds the lock, nobody ever gives it back."""
    lock, notes = threading.Lock(), [0.0]

    def note(number, frame):
        # So much longer than the grader waits that this thread ends, too.
        if lock.acquire(timeout=SECONDS + GRACE_SECONDS / 2):
            notes[0] = 1.0
            lock.release()

    for number in (signal.SIGTERM, signal.SIGUSR1):
        set_handler(number, note)
    for step in range(steps):
        train_step(step)
        with lock:
            told = notes[0]
        if _total(told) > 0:
            break
    return _save_on(0, save, step + 1)


@wrong("save_on_signal", fails="whenever it comes")
def forgets_what_it_has_told(train_step, steps, save, set_handler):
    """What comes after it has looked, and before it forgets, is told to nobody."""
    notes = [0.0]

    def note(number, frame):
        notes[0] = 1.0

    for number in (signal.SIGTERM, signal.SIGUSR1):
        set_handler(number, note)
    for step in range(steps):
        train_step(step)
        told = notes[0]
        notes[0] = 0.0
        if _total(told) > 0:
            break
    return _save_on(0, save, step + 1)


# -------------------------------------------------------------------------------------------- elastic_batch


@wrong("elastic_batch", fails="complete")
def drops_the_remainder(global_batch, world_size, rank):
    """Every rank takes global_batch // world_size; the rest is never seen."""
    size = global_batch // world_size
    return range(rank * size, (rank + 1) * size), 1.0


@wrong("elastic_batch", fails="complete")
def keeps_the_batch_of_a_rank(global_batch, world_size, rank):
    """The part that a rank had among four: with fewer ranks the global batch shrinks."""
    size = max(1, global_batch // 4)
    return range(rank * size, (rank + 1) * size), 1.0


@wrong("elastic_batch", fails="complete")
def rounds_up(global_batch, world_size, rank):
    """Parts of ceil(n / p) reach beyond the end."""
    size = math.ceil(global_batch / world_size)
    return range(rank * size, (rank + 1) * size), 1.0


@wrong("elastic_batch", fails="balanced")
def rounds_up_to_the_end(global_batch, world_size, rank):
    """Parts of ceil(n / p) samples; the last rank gets what is left, or nothing."""
    size = math.ceil(global_batch / world_size)
    part = range(global_batch)[rank * size : (rank + 1) * size]
    return part, len(part) * world_size / global_batch


@wrong("elastic_batch", fails="complete")
def tells_positions_as_floats(global_batch, world_size, rank):
    """Positions that index nothing."""
    part = _part(global_batch, world_size, rank)
    return [float(position) for position in part], len(part) * world_size / global_batch


@wrong("elastic_batch", fails="balanced")
def the_last_takes_the_rest(global_batch, world_size, rank):
    """All that is left over goes to one rank."""
    size = global_batch // world_size
    end = global_batch if rank == world_size - 1 else (rank + 1) * size
    return range(rank * size, end), (end - rank * size) * world_size / global_batch


def _part(global_batch, world_size, rank):
    return range(rank, global_batch, world_size)


@wrong("elastic_batch", fails="weight")
def all_count_alike(global_batch, world_size, rank):
    """The plain mean of the ranks' mean losses."""
    return _part(global_batch, world_size, rank), 1.0


@wrong("elastic_batch", fails="weight")
def share_of_the_batch(global_batch, world_size, rank):
    """m / n, as if the ranks' gradients were added and not averaged."""
    part = _part(global_batch, world_size, rank)
    return part, len(part) / global_batch


@wrong("elastic_batch", fails="weight")
def number_of_samples(global_batch, world_size, rank):
    """m, as for sums."""
    part = _part(global_batch, world_size, rank)
    return part, float(len(part))


@wrong("elastic_batch", fails="weight")
def scaled_the_wrong_way(global_batch, world_size, rank):
    """n / (m p): the fewer samples, the more they count."""
    part = _part(global_batch, world_size, rank)
    return part, global_batch / (max(1, len(part)) * world_size)


@wrong("elastic_batch", fails="more ranks than samples")
def at_least_one_each(global_batch, world_size, rank):
    """Gives a sample to a rank for which there is none."""
    part = _part(global_batch, world_size, rank) or range(1)
    return part, len(part) * world_size / global_batch


@wrong("elastic_batch", fails="more ranks than samples")
def divides_by_none(global_batch, world_size, rank):
    """Divides by how many samples each rank has at least."""
    part = _part(global_batch, world_size, rank)
    least = global_batch // world_size
    return part, len(part) / least * (least * world_size / global_batch)


@wrong("elastic_batch", fails="more ranks than samples")
def too_few_to_deal_out(global_batch, world_size, rank):
    """Rank 0 works on all of them, and the others wait."""
    if world_size > global_batch:
        return (range(global_batch), float(world_size)) if rank == 0 else (range(0), 0.0)
    part = _part(global_batch, world_size, rank)
    return part, len(part) * world_size / global_batch


@wrong("elastic_batch", fails="more ranks than samples")
def an_empty_part_counts_too(global_batch, world_size, rank):
    """Weight 1 for a mean over nothing, which is NaN."""
    part = _part(global_batch, world_size, rank)
    return part, len(part) * world_size / global_batch if part else 1.0


@wrong("elastic_batch", fails="complete")
def ends_by_division(global_batch, world_size, rank):
    """11 * (15 / 11) is a little less than 15, and int() takes that for 14."""
    begin, end = (int(place * (global_batch / world_size)) for place in (rank, rank + 1))
    return range(begin, end), (end - begin) * world_size / global_batch


@wrong("elastic_batch", fails="balanced")
def fractions_of_the_batch(global_batch, world_size, rank):
    """Rounding errors once more: 5 / 11 * 55 is a little less than 25."""
    begin, end = (int(place / world_size * global_batch) for place in (rank, rank + 1))
    return range(begin, end), (end - begin) * world_size / global_batch
