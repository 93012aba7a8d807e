"""Second ways to do exercises of unit 03, shown once they are solved. Each docstring says how it differs."""

import math
import os
import signal
import warnings
import zipfile

import torch
import torch.distributed as dist


def rank_from_environment(env):
    """A table of names, innermost launcher first; the node of an MPI rank from its neighbours."""
    table = {
        "RANK": ("LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE"),
        "HOROVOD_RANK": ("HOROVOD_LOCAL_RANK", "HOROVOD_CROSS_RANK", "HOROVOD_SIZE"),
        "OMPI_COMM_WORLD_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", None, "OMPI_COMM_WORLD_SIZE"),
        "SLURM_PROCID": ("SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_NUM_TASKS"),
    }
    for rank, (local, node, size) in table.items():
        if rank in env and size in env:
            local_size = env.get("OMPI_COMM_WORLD_LOCAL_SIZE")
            return {
                "world_size": int(env[size]),
                "rank": int(env[rank]),
                "local_rank": int(env[local]),
                "node_rank": int(env[node]) if node else int(env[rank]) // int(local_size),
            }
    return {"rank": 0, "local_rank": 0, "node_rank": 0, "world_size": 1}


def batch_script(nodes, gpus_per_node, command):
    """Gives each task torchrun's names too, in a shell of its own."""
    options = {"nodes": nodes, "ntasks-per-node": gpus_per_node, "gpus-per-task": 1, "time": "0:20:0"}
    lines = ["#!/bin/bash -e", *(f"#SBATCH --{name}={value}" for name, value in options.items())]
    lines += ["MASTER_ADDR=$(scontrol show hostnames | head -n1)"]
    lines += ["MASTER_PORT=$((SLURM_JOBID % 50000 + 10000))", "export MASTER_ADDR MASTER_PORT"]
    lines += ["cat > task.sh <<'END'", "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID"]
    lines += [f"WORLD_SIZE=$SLURM_NTASKS exec {command}", "END", "srun bash task.sh"]
    return "\n".join(lines) + "\n"


def cpu_bind_map(node):
    """Deals out one NUMA node after the other, and puts the GPUs in order at the end."""
    cores = sum(len(own) for own in node["cpus_of_numa"]) // node["threads_per_core"]
    result = {}
    for numa in set(node["numa_of_gpu"]):
        allowed = node["cpus_of_numa"][numa] if node["allowed"] is None else node["allowed"]
        usable = sorted(set(allowed) & set(node["cpus_of_numa"][numa]) & set(range(cores)))
        mine = [gpu for gpu, where in enumerate(node["numa_of_gpu"]) if where == numa]
        share = len(usable) // len(mine)
        result |= {gpu: usable[number * share] for number, gpu in enumerate(mine)}
    return [result[gpu] for gpu in sorted(result)]


def misplaced_cpus(option, node):
    """Masks all the way: a bit a CPU, and a CPU's core by folding the mask."""
    kind, _, entries = option.rpartition("=")[2].partition(":")
    masks = [
        int(entry, 16) if kind.startswith("mask") else 1 << int(entry, 0) for entry in entries.split(",")
    ]
    near = [sum(1 << cpu for cpu in cpus) for cpus in node["cpus_of_numa"]]
    everything = sum(near)
    allowed = everything if node["allowed"] is None else sum(1 << cpu for cpu in node["allowed"])
    cores = everything.bit_count() // node["threads_per_core"]
    answer = []
    for rank, mask in enumerate(masks):
        numa = node["numa_of_gpu"][rank]
        wrong = mask & ~(near[numa] & allowed)
        for other, theirs in enumerate(masks):
            if other != rank and node["numa_of_gpu"][other] == numa:
                for shift in range(-node["threads_per_core"], node["threads_per_core"] + 1):
                    wrong |= mask & (theirs << cores * shift if shift >= 0 else theirs >> cores * -shift)
        answer.append([cpu for cpu in range(wrong.bit_length()) if wrong & 1 << cpu])
    return answer


def checkpoint_interval(checkpoint_seconds, mean_time_between_failures, nodes=1):
    """No formula: looks for the interval with the least waste, by golden section, then by Newton's method."""
    mean_time = mean_time_between_failures / nodes

    def waste(logarithm):
        interval = math.exp(logarithm)
        return checkpoint_seconds / interval + interval / (2 * mean_time)

    low, high = 0.0, math.log(10 * (mean_time + checkpoint_seconds))
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(60):
        lower, upper = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, upper) if waste(lower) < waste(upper) else (lower, high)
    # A minimum is flat: the search comes near it, Newton's method for the derivative comes close.
    interval = math.exp((low + high) / 2)
    for _ in range(3):
        interval = (interval + 2 * checkpoint_seconds * mean_time / interval) / 2
    return interval


def save_checkpoint(path, state):
    """A file whose writes return when they are on the disk needs no fsync."""
    temporary = path.with_name(f"{path.name}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_SYNC
    try:
        with open(os.open(temporary, flags), "wb") as file:
            torch.save(state, file)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def load_latest(directory, below=math.inf):
    """Takes the newest below a step, and if it is torn the newest below that."""
    steps = {}
    for path in directory.glob("step-*.pt"):
        number = path.stem.removeprefix("step-")
        if path.suffix == ".pt" and number.isdecimal() and int(number) < below:
            steps[int(number)] = path
    if not steps:
        return None
    newest = max(steps)
    try:
        assert zipfile.ZipFile(steps[newest]).testzip() is None
        return torch.load(steps[newest], map_location="cpu")
    except Exception as error:
        warnings.warn(f"{steps[newest]}: {error!r}", stacklevel=2)
        return load_latest(directory, newest)


def resume(training, directory, save_every, save, load_latest):
    """Nothing random to save: the random state is a function of the step."""
    batches = [
        batch
        for epoch in range(training.epochs)
        for batch in torch.randperm(
            len(training.samples), generator=torch.Generator().manual_seed(100 + epoch)
        ).split(training.batch_size)
    ]
    held = load_latest(directory) or {"done": 0}
    for part in ("model", "optimizer"):
        if part in held:
            getattr(training, part).load_state_dict(held[part])
    for done, batch in enumerate(batches[held["done"] :], held["done"] + 1):
        torch.manual_seed(done)
        training.train_step(training.samples[batch])
        if done % save_every == 0 or done == len(batches):
            state = {part: getattr(training, part).state_dict() for part in ("model", "optimizer")}
            save(directory / f"step-{done}.pt", state | {"done": done})


def save_on_signal(train_step, steps, save, set_handler):
    """The sum is under way during the next step, and is looked at after it."""
    stop_file = {"asked": 0.0}

    def note(*_):
        stop_file.update(asked=1.0)

    set_handler(signal.SIGTERM, note)
    set_handler(signal.SIGUSR1, note)
    train_step(0)
    done = 1
    while done < steps:
        told = torch.full((), stop_file["asked"], dtype=torch.float64)
        work = dist.all_reduce(told, async_op=True)
        train_step(done)
        done += 1
        work.wait()
        if told:
            break
    if not dist.get_rank():
        save(done)
    return done


def elastic_batch(global_batch, world_size, rank):
    """Deals the positions out like cards, so that no two ranks differ by more than one."""
    part = range(rank, global_batch, world_size)
    return part, len(part) / (global_batch / world_size)
