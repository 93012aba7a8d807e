"""Mistakes that people make in unit 03."""

import math
import os
import re
import shlex
import shutil
import signal
import tempfile
import warnings
import zipfile
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist

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


@wrong("expand_hostlist", fails="leading zeros")
def numbers_are_numbers(text):
    """int("007") forgets the zeros."""
    return _expanded(text, numbers=lambda ranges: [str(int(number)) for number in _numbers(ranges)])


@wrong("expand_hostlist", fails="several in brackets")
def splits_by_every_comma(text):
    """Tears "c101-[001,007]" into "c101-[001" and "007]"."""
    return _expanded(text, found=lambda text: text.split(",") if text else [])


@wrong("expand_hostlist", fails="two brackets")
def first_counts_fastest(text):
    """Combines the brackets in the wrong order."""
    hosts = []
    for name in _names(text):
        pieces = re.split(r"\[([^\]]*)\]", name)
        choices = [_numbers(piece) if place % 2 else [piece] for place, piece in enumerate(pieces)]
        hosts += ["".join(reversed(parts)) for parts in product(*reversed(choices))]
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


@wrong("rank_from_environment", fails="one launcher inside another")
def outermost_first(env):
    """Asks for Slurm's variables first: each torchrun's workers think that they are one."""
    slurm = _SLURM if "SLURM_STEP_ID" in env else ("", "", "", "")
    return _first(_with_node(env), (slurm, _TORCHRUN, _HOROVOD, _MPI))


@wrong("rank_from_environment", fails="no launcher")
def the_batch_script_is_a_rank(env):
    """Takes a batch script's shell for rank 0 of all tasks, which then waits for the others for ever."""
    return _first(_with_node(env), (_TORCHRUN, _HOROVOD, _MPI, _SLURM))


@wrong("rank_from_environment", fails="torchrun")
def all_nodes_are_alike(env):
    """One node may have more ranks than another."""
    place = _first(_with_node(env), (_TORCHRUN, _HOROVOD, _MPI, _SLURM if "SLURM_STEP_ID" in env else [""]))
    if "RANK" in env:
        place["node_rank"] = place["rank"] // int(env["LOCAL_WORLD_SIZE"])
    return place


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


@wrong("form_to_script", fails="what is asked for")
def options_after_a_module(form, queues):
    """sbatch reads no further than the first command."""
    first, *options, last = _script(_asked(_judged(form, queues))).splitlines()
    return "\n".join([first, "module load python3", *options, last])


@wrong("form_to_script", fails="a name of two words")
def name_not_quoted(form, queues):
    """For sbatch a second word is another argument."""
    return _script(_asked(_judged(form, queues))).replace("'", "")


@wrong("form_to_script", fails="defaults")
def missing_but_not_empty(form, queues):
    """dict.get has a default for what is missing only."""
    field = _filled(form) | {name: text for name, text in form.items() if name in ("Nodes", "Time Limit")}
    if mistakes := list(_mistakes(field, queues)):
        raise ValueError("; ".join(mistakes))
    return _script(_asked(field))


@wrong("form_to_script", fails="limits")
def believes_the_form(form, queues):
    """sbatch will say it, in an hour."""
    return _script(_asked(_filled(form)))


@wrong("form_to_script", fails="every mistake is named")
def the_first_mistake(form, queues):
    """The next one comes to light at the next attempt."""
    for mistake in _mistakes(_filled(form), queues):
        raise ValueError(mistake)
    return _script(_asked(_filled(form)))


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


@wrong("container_command", fails="one container per task")
def launcher_in_the_image(site, image, command):
    """The image has no srun, and if it had, not the machine's."""
    words = [site["runtime"], "exec", *_gpus(site), *_binds(site), image, *site["launcher"], *command]
    return "\n".join([*_modules(site), shlex.join(words)])


@wrong("container_command", fails="GPUs")
def always_nvidia(site, image, command):
    """On LUMI the GPUs are AMD's."""
    return _text(site, image, command, gpus=["--nv"])


@wrong("container_command", fails="modules")
def on_top_of_what_is_loaded(site, image, command):
    """What .bashrc has loaded stays loaded."""
    return _text(site, image, command, modules=_modules(site)[1:])


@wrong("container_command", fails="folders")
def binds_all(site, image, command):
    """What is mounted anyway is bound once more."""
    return _text(site, image, command, binds=_binds({**site, "mounted": []}))


@wrong("container_command", fails="a folder within a folder")
def the_other_way_round(site, image, command):
    """Right where the inner folders were named first."""
    order = list(site["folders"])[::-1]
    binds = sorted(_binds(site), key=lambda bind: order.index(bind[7:].partition(":")[0]))
    return _text(site, image, command, binds=binds)


@wrong("container_command", fails="words stay whole")
def joined_by_blanks(site, image, command):
    """The shell splits what was one word."""
    line = _line(site, _gpus(site) + _binds(site), "IMAGE", ["COMMAND"])
    return "\n".join([*_modules(site), line.replace("IMAGE COMMAND", " ".join([image, *command]))])


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


@wrong("cpu_bind_map", fails="allowed cores")
def reserved_cores_too(node):
    """Forgets that the first core of each eight is not the job's: srun refuses such a map."""
    return _dealt(node["numa_of_gpu"], _cores(node, allowed=range(10**3)))


@wrong("cpu_bind_map", fails="hardware threads")
def threads_are_cores(node):
    """Deals out second hardware threads as if they were cores."""
    return _dealt(node["numa_of_gpu"], _cores(node, threads=1))


@wrong("cpu_bind_map", fails="real machines")
def always_a_list(node):
    """Where nothing is said of what the job may use, it may use all."""
    return _dealt(node["numa_of_gpu"], _cores(node, allowed=set(node["allowed"])))


@wrong("cpu_bind_map", fails="real machines")
def all_cpus_if_nothing_is_said(node):
    """Where nothing is said of what the job may use, second threads are no cores either."""
    cores = _cores(node) if node["allowed"] is not None else node["cpus_of_numa"]
    return _dealt(node["numa_of_gpu"], cores)


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
    usable = node["allowed"] if allowed and node["allowed"] is not None else range(10**3)
    neighbours = taken or (lambda rank, other: rank != other and nodes[rank] == nodes[other])
    found = []
    for rank, own in enumerate(given):
        others = [theirs for other, theirs in enumerate(given) if neighbours(rank, other)]
        theirs = {cpu % cores for each in others for cpu in each}
        near = node["cpus_of_numa"][nodes[rank]] if beside else range(10**3)
        found.append([c for c in own if c not in near or c not in usable or c % cores in theirs])
    return found


@wrong("misplaced_cpus", fails="masks")
def bits_from_the_left(option, node):
    """The last digit of a number is its smallest."""
    masks = [bin(int(entry, 16))[2:] for entry in option.rpartition(":")[2].split(",")]
    return _judged_cpus([[cpu for cpu, bit in enumerate(mask) if bit == "1"] for mask in masks], node)


@wrong("misplaced_cpus", fails="beside the GPU")
def node_by_division(option, node):
    """Takes for granted that NUMA nodes have consecutive cores."""
    size = len(node["cpus_of_numa"][0]) // node["threads_per_core"]
    count = len(node["cpus_of_numa"])
    cpus = [[] for _ in range(count)]
    for cpu in range(sum(map(len, node["cpus_of_numa"]))):
        cpus[cpu // size % count].append(cpu)
    return _judged_cpus(_given(option), {**node, "cpus_of_numa": cpus})


@wrong("misplaced_cpus", fails="allowed")
def all_cpus_of_the_node(option, node):
    """Forgets what the job may not use."""
    return _judged_cpus(_given(option), node, allowed=False)


@wrong("misplaced_cpus", fails="one rank per core")
def each_rank_for_itself(option, node):
    """Two ranks on one core are not seen."""
    return _judged_cpus(_given(option), node, taken=lambda rank, other: False)


@wrong("misplaced_cpus", fails="maps")
def masks_only(option, node):
    """A CPU's number is read as a mask."""
    return _judged_cpus(_given(option.replace("map_cpu", "mask_cpu")), node)


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


@wrong("batch_script", fails="what is asked for")
def half_a_minute(nodes, gpus_per_node, command):
    """0:30 is minutes and seconds."""
    options = _options(nodes, gpus_per_node).replace("00:30:00", "0:30")
    return _HEAD + options + _MEET + f"srun {command}\n"


@wrong("batch_script", fails="one task per GPU")
def quoted_twice(nodes, gpus_per_node, command):
    """The quotes of the command end those round it."""
    return _HEAD + _options(nodes, gpus_per_node) + _MEET + f'srun bash -c "{command}"\n'


@wrong("batch_script", fails="a meeting place")
def everybody_at_home(nodes, gpus_per_node, command):
    """On the second node localhost is the second node."""
    meet = f"export MASTER_ADDR=localhost {_PORT}\n"
    return _HEAD + _options(nodes, gpus_per_node) + meet + f"srun {command}\n"


@wrong("batch_script", fails="fails with the training")
def says_done(nodes, gpus_per_node, command):
    """The echo succeeds, so the job does."""
    return _HEAD + _options(nodes, gpus_per_node) + _MEET + f'srun {command}\necho "done at $(date)"\n'


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


@wrong("checkpoint_interval", fails="many nodes")
def as_if_on_one_node(checkpoint_seconds, mean_time_between_failures, nodes=1):
    """The job fails as seldom as one of its nodes."""
    return math.sqrt(2 * checkpoint_seconds * mean_time_between_failures)


@wrong("checkpoint_interval", fails="many nodes")
def interval_by_nodes(checkpoint_seconds, mean_time_between_failures, nodes=1):
    """Divides the interval, not the mean time, by the nodes."""
    return math.sqrt(2 * checkpoint_seconds * mean_time_between_failures) / nodes


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
def never_overwrites(path, state):
    """A checkpoint that is there is left as it is."""
    if not path.exists():
        _written(state, path.with_suffix(".tmp"))
        os.replace(path.with_suffix(".tmp"), path)
        _sync_folder(path.parent)


@wrong("save_checkpoint", fails="whole at every moment")
def straight_to_its_name(path, state):
    """What everybody does first."""
    torch.save(state, path)


@wrong("save_checkpoint", fails="temporary file")
def written_in_tmp(path, state):
    """The usual place for temporary files is another disk than that of the checkpoints."""
    with tempfile.NamedTemporaryFile("wb", suffix=".tmp", delete=False) as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    shutil.move(file.name, path)
    _sync_folder(path.parent)


@wrong("save_checkpoint", fails="on the disk before its name")
def rename_only(path, state):
    """The usual recipe; it survives a kill, and no power failure."""
    _replaced(path, state, write=torch.save)


@wrong("save_checkpoint", fails="the directory too")
def forgets_the_directory(path, state):
    """The bytes are on the disk, the name may not be."""
    _replaced(path, state)


@wrong("save_checkpoint", fails="when writing fails")
def leaves_it_to_the_next(path, state):
    """On a full disk the half-written file stays, and fills it."""
    with tempfile.NamedTemporaryFile("wb", dir=path.parent, suffix=".tmp", delete=False) as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)
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


@wrong("load_latest", fails="nothing there")
def a_first_start_is_an_error(directory):
    """max() of nothing."""
    return _whole(max(directory.glob("step-*.pt"), key=lambda path: int(path.stem[5:])))


@wrong("load_latest", fails="other files")
def searches_in_the_name(directory):
    """re.search finds step-12.pt in step-12.pt.tmp and in old-step-12.pt."""
    found = {path: re.search(r"step-(\d+)\.pt", path.name) for path in directory.glob("*")}
    paths = sorted((int(match[1]), path) for path, match in found.items() if match)
    return _whole(paths[-1][1]) if paths else None


@wrong("load_latest", fails="torn files")
def trusts_the_newest(directory):
    """A kill while writing, and nothing starts any more."""
    for path in _numbered(directory):
        return _whole(path)
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


@wrong("load_latest", fails="tells and keeps")
def without_a_word(directory):
    """A thousand steps are lost, and nobody knows."""
    for path in _numbered(directory):
        try:
            return _whole(path)
        except Exception:
            continue
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


@wrong("resume", fails="shuffles each epoch")
def one_order_for_all(training, directory, save_every, save, load_latest):
    """The generator is seeded with the same number in every epoch."""
    _train(training, directory, save_every, save, load_latest, order=lambda _, samples: _order(7, samples))


@wrong("resume", fails="saves")
def counts_in_each_epoch(training, directory, save_every, save, load_latest):
    """Saves by the number of the batch in its epoch, which each epoch counts anew."""
    samples, size = len(training.samples), training.batch_size
    for epoch in range(training.epochs):
        for position, batch in enumerate(_order(epoch, samples).split(size)):
            training.train_step(training.samples[batch])
            if position % save_every == 0:
                save(directory / f"step-{position}.pt", {"model": training.model.state_dict()})


@wrong("resume", fails="goes on")
def weights_only(training, directory, save_every, save, load_latest):
    """Loads the weights and begins at step 0."""
    _train(training, directory, save_every, save, load_latest, begin=lambda _: 0)


@wrong("resume", fails="model and optimizer")
def forgets_the_optimizer(training, directory, save_every, save, load_latest):
    """The momentum begins at zero again."""
    _train(training, directory, save_every, save, load_latest, parts=("random",))


@wrong("resume", fails="random state")
def forgets_the_random_state(training, directory, save_every, save, load_latest):
    """Dropout draws after the restart what it drew at the beginning."""
    _train(training, directory, save_every, save, load_latest, parts=("optimizer",))


@wrong("resume", fails="killed anywhere")
def trains_on_after_the_end(training, directory, save_every, save, load_latest):
    """Started again after the end, it makes the last step once more."""
    an_epoch = math.ceil(len(training.samples) / training.batch_size)
    last = an_epoch * training.epochs
    begin = lambda step: min(step, last - 1)  # noqa: E731
    _train(training, directory, save_every, save, load_latest, begin=begin)


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


@wrong("save_on_signal", fails="all stop after the same step")
def each_for_itself(train_step, steps, save, set_handler):
    """The others wait for it in the next step."""
    came = _noted(set_handler)
    done = _train_until(lambda done: came, train_step, steps)
    return _save_on(0, save, done)


@wrong("save_on_signal", fails="both signals")
def ignores_signals(train_step, steps, save, set_handler):
    """Until SIGKILL comes, which nobody can ignore."""
    for number in (signal.SIGTERM, signal.SIGUSR1):
        set_handler(number, signal.SIG_IGN)
    for step in range(steps):
        train_step(step)
    return _save_on(0, save, steps)


@wrong("save_on_signal", fails="one writes")
def all_write(train_step, steps, save, set_handler):
    """All ranks write one file at the same time."""
    came = _noted(set_handler)
    done = _until_told(train_step, steps, came)
    save(done)
    return done


@wrong("save_on_signal", fails="whenever it comes")
def its_own_eyes_too(train_step, steps, save, set_handler):
    """What came after the sum was taken is known to this rank alone."""
    came = _noted(set_handler)
    done = _train_until(lambda done: _total(bool(came)) or came, train_step, steps)
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


# -------------------------------------------------------------------------------------------- elastic_batch


@wrong("elastic_batch", fails="complete")
def drops_the_remainder(global_batch, world_size, rank):
    """Every rank takes global_batch // world_size; the rest is never seen."""
    size = global_batch // world_size
    return range(rank * size, (rank + 1) * size), 1.0


@wrong("elastic_batch", fails="balanced")
def rounds_up_to_the_end(global_batch, world_size, rank):
    """Parts of ceil(n / p) samples; the last rank gets what is left, or nothing."""
    size = math.ceil(global_batch / world_size)
    part = range(global_batch)[rank * size : (rank + 1) * size]
    return part, len(part) * world_size / global_batch


def _part(global_batch, world_size, rank):
    return range(rank, global_batch, world_size)


@wrong("elastic_batch", fails="weight")
def all_count_alike(global_batch, world_size, rank):
    """The plain mean of the ranks' mean losses."""
    return _part(global_batch, world_size, rank), 1.0


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
