"""Right answers to unit 03 that are written otherwise than the solution."""

import io
import math
import os
import re
import shlex
import signal
import tempfile
import warnings
import zipfile
from pathlib import Path

import torch
import torch.distributed as dist

from tests.answers import right


@right("expand_hostlist")
def by_recursion(text):
    """Opens the first bracket, and expands what comes out of it."""
    name, rest = _first_name(text)
    if not name:
        return []
    return _opened(name) + by_recursion(rest)


@right("expand_hostlist")
def letter_by_letter(text):
    """Reads letter by letter; keeps all beginnings of the present name."""
    hosts, names, inside = [], [""], None
    for letter in [*text, ","]:
        if inside is not None and letter != "]":
            inside += letter
        elif letter == "[":
            inside = ""
        elif letter == "]":
            names = [name + number for name in names for number in _listed(inside)]
            inside = None
        elif letter == ",":
            hosts += [name for name in names if name]
            names = [""]
        else:
            names = [name + letter for name in names]
    return hosts


def _listed(ranges):
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        number = int(first)
        while number <= int(last or first):
            yield format(number, f"0{len(first)}d")
            number += 1


def _first_name(text):
    """The text before the first comma outside of brackets, and the text after it."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            return text[:place], text[place + 1 :]
    return text, ""


def _opened(name):
    match = re.search(r"\[([^\]]*)\]", name)
    if match is None:
        return [name]
    hosts = []
    for part in match[1].split(","):
        first, last = part.split("-") if "-" in part else (part, part)
        for number in range(int(first), int(last) + 1):
            hosts += _opened(name[: match.start()] + str(number).zfill(len(first)) + name[match.end() :])
    return hosts


@right("rank_from_environment")
def by_prefixes(env):
    """Sorts the variables by their prefix, then reads what belongs together."""

    def numbers(prefix):
        cut = {name[len(prefix) :]: value for name, value in env.items() if name.startswith(prefix)}
        return {name: int(value) for name, value in cut.items() if value.isdigit()}

    mpi, horovod, slurm, torch = map(numbers, ("OMPI_COMM_WORLD_", "HOROVOD_", "SLURM_", ""))
    place = (0, 0, 0, 1)
    if "STEP_ID" in slurm:
        place = slurm["PROCID"], slurm["LOCALID"], slurm["NODEID"], slurm["NTASKS"]
    if "RANK" in mpi:
        place = (
            mpi["RANK"],
            mpi["LOCAL_RANK"],
            (mpi["RANK"] - mpi["LOCAL_RANK"]) // mpi["LOCAL_SIZE"],
            mpi["SIZE"],
        )
    if "RANK" in horovod:
        place = horovod["RANK"], horovod["LOCAL_RANK"], horovod["CROSS_RANK"], horovod["SIZE"]
    if "RANK" in torch:
        place = torch["RANK"], torch["LOCAL_RANK"], torch["GROUP_RANK"], torch["WORLD_SIZE"]
    return dict(zip(("rank", "local_rank", "node_rank", "world_size"), place, strict=True))


class BadForm(ValueError):
    """A ValueError that callers can tell from others."""


@right("form_to_script")
def short_options(form, queues):
    """Short options, another shell, seconds by subtraction, mistakes as lines of an error of its own."""
    system, queue, project, name, reservation = (
        form.get(field) or "" for field in ("System", "Queue", "Project", "Job Name", "Reservation")
    )
    wrong = []
    most = queues.get(system, {}).get(queue, {"nodes": math.inf, "hours": math.inf})
    if system not in queues:
        wrong.append("System is none of " + ", ".join(queues))
    elif queue not in queues[system]:
        wrong.append("Queue is none of " + ", ".join(queues[system]))
    numbers = {}
    for field, least in (("Nodes", 1), ("Tasks", None)):
        typed = form.get(field) or str(numbers.get("Nodes", 1))
        try:
            numbers[field] = int(typed)
            if not typed.isdecimal() or numbers[field] < (least or numbers.get("Nodes", 1)):
                raise ValueError
        except ValueError:
            wrong.append(f"{field} cannot be {typed}")
    if numbers.get("Nodes", 0) > most["nodes"]:
        wrong.append(f"Nodes: {numbers['Nodes']} are more than {most['nodes']}")
    if name[20:]:
        wrong.append(f"Job Name is longer than 20 characters: {name[:20]}...")
    try:
        hours, minutes, seconds = map(int, (form.get("Time Limit") or "02:00:00").split(":"))
        left = most["hours"] * 3600 - hours * 3600 - minutes * 60 - seconds
        times = (hours, minutes, seconds)
        if left < 0 or min(times) < 0 or max(times) == 0 or max(times[1:]) > 59:
            raise ValueError
    except ValueError:
        wrong.append(f"Time Limit is written as 2:0:0, more than 0, and at most {most['hours']}h")
    if wrong:
        raise BadForm("\n".join(wrong))
    lines = [f"-p {queue} -N {numbers['Nodes']} -n {numbers['Tasks']}", f"-t {hours}:{minutes}:{seconds}"]
    lines += [f"-A {shlex.quote(project)}"] if project else []
    lines += [f"--reservation {shlex.quote(reservation)}"] if reservation else []
    lines += [f"-J {shlex.quote(name)}"] if name else []
    return (
        "#!/bin/sh\n#SBATCH "
        + "\n#SBATCH ".join(lines)
        + "\n\nexport OMP_NUM_THREADS=4\njupyter lab --no-browser"
    )


@right("form_to_script")
def in_place_of_the_shell(form, queues):
    """Jupyter takes the place of the script's shell; mistakes are collected by exceptions."""
    typed = {"Nodes": "1", "Time Limit": "2:0:0"} | {name: text for name, text in form.items() if text}
    typed.setdefault("Tasks", typed["Nodes"])
    wrong, queue = [], {}

    def check(field, right, says):
        if not right:
            wrong.append(f"{field} {says}")

    check("System", typed.get("System") in queues, "is not there")
    if typed.get("System") in queues:
        queue = queues[typed["System"]].get(typed.get("Queue"), {})
        check("Queue", queue, "is not there")
    nodes, tasks = (
        int(text) if re.fullmatch("[0-9]+", text) else 0 for text in (typed["Nodes"], typed["Tasks"])
    )
    check("Nodes", 0 < nodes <= queue.get("nodes", nodes), f"from 1 to {queue.get('nodes')}")
    check("Tasks", tasks >= max(nodes, 1), "from the number of nodes on")
    check("Job Name", len(typed.get("Job Name", "")) <= 20, "may have 20 characters")
    time = re.fullmatch("([0-9]+):([0-5]?[0-9]):([0-5]?[0-9])", typed["Time Limit"])
    seconds = int(time[1]) * 3600 + int(time[2]) * 60 + int(time[3]) if time else 0
    most = queue.get("hours", math.inf)
    check("Time Limit", 0 < seconds <= 3600 * most, f"as 2:0:0, at most {most} hours")
    if wrong:
        raise ValueError(", ".join(wrong))
    names = {
        "Queue": "-p",
        "Nodes": "-N",
        "Tasks": "-n",
        "Time Limit": "-t",
        "Project": "-A",
        "Job Name": "-J",
    }
    lines = [f"#SBATCH {short} {shlex.quote(typed[name])}" for name, short in names.items() if name in typed]
    lines += [f"#SBATCH --reservation={shlex.quote(typed['Reservation'])}"] if "Reservation" in typed else []
    return "\n".join(["#!/bin/bash", *lines, "module load python3", "exec jupyter lab --no-browser", ""])


@right("container_command")
def in_one_line(site, image, command):
    """Modules by `ml`, all joined by &&; each folder by -B, and one option that names several."""
    joined = lambda words: " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)  # noqa: E731
    launcher, quoted = joined(site["launcher"]), joined([image, *command])
    binds = []
    for path in sorted(site["folders"], key=len):
        if all((path + "/").find(there + "/") != 0 for there in site["mounted"]):
            binds.append(path + ":" + path + (":rw" if site["folders"][path] == "write" else ":ro"))
    option = f"-B {joined([','.join(binds)])} " if binds else ""
    gpu = "--nv " if site["gpus"] == "NVIDIA" else "--rocm " if site["gpus"] == "AMD" else ""
    start = f"{launcher} {site['runtime']} exec {gpu}{option}{quoted}"
    loads = [f"ml {name}" for name in site["modules"]]
    return " && ".join(["ml purge", *loads, start] if loads else [start])


@right("container_command")
def by_mounts(site, image, command):
    """Each folder by --mount, which Apptainer has as Docker does."""
    mounted = [Path(there) for there in site["mounted"]]
    options = {"NVIDIA": ["--nv"], "AMD": ["--rocm"]}.get(site["gpus"], [])
    for path in sorted(site["folders"]):
        if not {Path(path), *Path(path).parents} & {*mounted}:
            mode = ",ro" if site["folders"][path] == "read" else ""
            options += ["--mount", f"type=bind,src={path},dst={path}{mode}"]
    start = shlex.join([*site["launcher"], site["runtime"], "exec", *options, image, *command])
    return "\n".join(
        [f"module purge\nmodule load {' '.join(site['modules'])}"] * bool(site["modules"]) + [start]
    )


@right("cpu_bind_map")
def by_counting(node):
    """Counts how many GPUs of each NUMA node have been served."""
    nodes, served, result = node["numa_of_gpu"], [0] * len(node["cpus_of_numa"]), []
    everything = [cpu for own in node["cpus_of_numa"] for cpu in own]
    for numa in nodes:
        own = [
            cpu
            for cpu in node["cpus_of_numa"][numa]
            if cpu * node["threads_per_core"] < len(everything) and (node["allowed"] or everything).count(cpu)
        ]
        result.append(own[len(own) // nodes.count(numa) * served[numa]])
        served[numa] += 1
    return result


@right("misplaced_cpus")
def by_who_is_on_a_core(option, node):
    """First notes which ranks run on each core, then asks each CPU."""
    kind, entries = option[len("--cpu-bind=") :].split(":")
    total = sum(len(cpus) for cpus in node["cpus_of_numa"])
    cores = total // node["threads_per_core"]
    home = {cpu: numa for numa, cpus in enumerate(node["cpus_of_numa"]) for cpu in cpus}
    given, on_core = [], {}
    for rank, entry in enumerate(entries.split(",")):
        number = int(entry, 16 if kind == "mask_cpu" else 0)
        own = [cpu for cpu in range(2000) if number & (1 << cpu)] if kind == "mask_cpu" else [number]
        given.append(own)
        for cpu in own:
            on_core.setdefault(cpu % cores, set()).add((node["numa_of_gpu"][rank], rank))
    return [
        [
            cpu
            for cpu in own
            if home.get(cpu) != numa
            or (node["allowed"] is not None and cpu not in node["allowed"])
            or any(where == numa and other != rank for where, other in on_core[cpu % cores])
        ]
        for rank, (own, numa) in enumerate(zip(given, node["numa_of_gpu"], strict=False))
    ]


@right("batch_script")
def with_short_options(nodes, gpus_per_node, command):
    """Short options, --gres, and the name of the node that the script runs on."""
    return (
        f"#!/usr/bin/env bash\n#SBATCH -N {nodes} --ntasks-per-node {gpus_per_node}\n"
        f"#SBATCH --gres=gpu:{gpus_per_node}\n#SBATCH -t 10\n"
        f"export MASTER_ADDR=$(hostname) MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))\n"
        f"srun {command}\n"
    )


# ------------------------------------------------------------------------------------- checkpoints, survival


@right("checkpoint_interval")
def geometric_mean(checkpoint_seconds, mean_time_between_failures, nodes=1):
    """The geometric mean of a checkpoint and of twice the job's mean time."""
    return math.exp((math.log(checkpoint_seconds) + math.log(2 * mean_time_between_failures / nodes)) / 2)


@right("save_checkpoint")
def with_a_name_of_its_own(path, state):
    """A temporary name that no other process has; torch writes the file itself."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    os.close(handle)
    try:
        torch.save(state, name)
        with open(name, "rb+") as file:
            os.fdatasync(file.fileno())
        os.replace(name, path)
    finally:
        if os.path.exists(name):
            os.remove(name)
    os.sync()


@right("load_latest")
def by_reading_everything(directory):
    """Reads the file once, checks it in memory, and loads it from there."""
    names = os.listdir(directory) if directory.is_dir() else []
    steps = sorted(int(name[5:-3]) for name in names if re.match(r"^step-\d+\.pt$", name))
    for step in steps[::-1]:
        path = next(directory / n for n in names if re.match(rf"^step-0*{step}\.pt$", n))
        try:
            memory = io.BytesIO(path.read_bytes())
            with zipfile.ZipFile(memory) as archive:
                for part in archive.namelist():
                    archive.read(part)
            memory.seek(0)
            return torch.load(memory)
        except Exception:
            warnings.warn(f"{path} cannot be used", UserWarning, 1)
    return None


@right("resume")
def saves_the_order(training, directory, save_every, save, load_latest):
    """Draws the order from the global state, and saves what is left of it."""
    last = training.epochs * math.ceil(len(training.samples) / training.batch_size)
    state = load_latest(directory)
    if state is None:
        step, left = 0, torch.empty(0, dtype=torch.int64)
    else:
        step, left = state["step"], state["left"]
        training.model.load_state_dict(state["model"])
        training.optimizer.load_state_dict(state["optimizer"])
        torch.random.set_rng_state(state["rng"])
    for number in range(step + 1, last + 1):
        if not len(left):
            left = torch.randperm(len(training.samples))
        batch, left = left[: training.batch_size], left[training.batch_size :]
        training.train_step(training.samples[batch])
        if number % save_every == 0 or number == last:
            held = {"step": number, "left": left.clone(), "rng": torch.random.get_rng_state()}
            held |= {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
            save(directory / f"step-{number}.pt", held)


@right("save_on_signal")
def asks_before_each_step(train_step, steps, save, set_handler):
    """The largest of whole numbers, asked for before a step; the last rank saves, and all wait for it."""
    seen = set()
    for number in (signal.SIGUSR1, signal.SIGTERM):
        set_handler(number, lambda number, _: seen.add(number))
    for step in range(steps):
        asked = torch.tensor([len(seen)])
        dist.all_reduce(asked, dist.ReduceOp.MAX)
        if asked[0] > 0:
            done = step
            break
        train_step(step)
    else:
        done = steps
    if dist.get_rank() == dist.get_world_size() - 1:
        save(done)
    dist.barrier()
    return done


@right("elastic_batch")
def the_first_get_one_more(global_batch, world_size, rank):
    """Equal parts, and what is left over goes to the first ranks."""
    size, left = divmod(global_batch, world_size)
    begin = rank * size + min(rank, left)
    part = range(begin, begin + size + (rank < left))
    return part, world_size * len(part) / global_batch
