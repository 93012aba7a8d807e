"""Mistakes that people make in unit 03."""

import math
import os
import shutil
import tempfile

import torch

from tests.answers import instead, wrong

# -------------------------------------------------------------------------------------------- expand_hostlist


@instead(
    "expand_hostlist",
    ('re.findall(r"(?:\\[[^\\]]*\\]|[^,\\[])+", text)', 're.split(r",(?![^\\[]*\\])", text)'),
    fails="plain names",
)
def a_host_without_a_name():
    """An empty text, split by commas, is one empty text."""


@instead("expand_hostlist", ("return hosts", "return list(dict.fromkeys(hosts))"), fails="plain names")
def every_host_once():
    """A set forgets what comes twice."""


@instead("expand_hostlist", ("{number:0{width}}", "{number}"), fails="leading zeros")
def numbers_are_numbers():
    """int("007") forgets the zeros."""


@instead(
    "expand_hostlist",
    ('re.findall(r"(?:\\[[^\\]]*\\]|[^,\\[])+", text)', 'text.split(",") if text else []'),
    fails="several in brackets",
)
def splits_by_every_comma():
    """Tears "c101-[001,007]" into "c101-[001" and "007]"."""


@instead(
    "expand_hostlist",
    (
        '"".join(parts) for parts in product(*choices)',
        '"".join(reversed(parts)) for parts in product(*reversed(choices))',
    ),
    fails="two brackets",
)
def first_counts_fastest():
    """Combines the brackets in the wrong order."""


# -------------------------------------------------------------------------------------- rank_from_environment


@instead("rank_from_environment", ("(int(env[name]) for", "(env[name] for"), fails="srun")
def texts_instead_of_numbers():
    """Environment variables are texts; "10" < "9"."""


@instead(
    "rank_from_environment",
    (
        'names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS")',
        'each = int(env["SLURM_NTASKS"]) // int(env["SLURM_NNODES"])\n'
        '        node, local = divmod(int(env["SLURM_PROCID"]), each)\n'
        '        env = env | {"NODE": str(node), "LOCAL": str(local)}\n'
        '        names = ("SLURM_PROCID", "LOCAL", "NODE", "SLURM_NTASKS")',
    ),
    fails="srun",
)
def local_rank_by_division():
    """Takes for granted that srun fills one node after another."""


@instead(
    "rank_from_environment",
    (
        'if "RANK" in env:',
        'if "SLURM_STEP_ID" in env:\n'
        '        names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS")\n'
        '    elif "RANK" in env:',
    ),
    fails="one launcher inside another",
)
def outermost_first():
    """Asks for Slurm's variables first: each torchrun's workers think that they are one."""


@instead("rank_from_environment", ('"SLURM_STEP_ID" in env', '"SLURM_PROCID" in env'), fails="no launcher")
def the_batch_script_is_a_rank():
    """Takes a batch script's shell for rank 0 of all tasks, which then waits for the others for ever."""


@instead(
    "rank_from_environment",
    (
        'names = ("RANK", "LOCAL_RANK", "GROUP_RANK"',
        'env = env | {"NODE": str(int(env["RANK"]) // int(env["LOCAL_WORLD_SIZE"]))}\n'
        '        names = ("RANK", "LOCAL_RANK", "NODE"',
    ),
    fails="torchrun",
)
def all_nodes_are_alike():
    """One node may have more ranks than another."""


# --------------------------------------------------------------------------------------------- form_to_script


@instead(
    "form_to_script", ("#!/bin/bash\\n", "#!/bin/bash\\nmodule load python3\\n"), fails="what is asked for"
)
def options_after_a_module():
    """sbatch reads no further than the first command."""


@instead("form_to_script", ("shlex.quote(value)", "value"), fails="a name of two words")
def name_not_quoted():
    """For sbatch a second word is another argument."""


@instead(
    "form_to_script",
    ("form.items() if text}", 'form.items() if text or name in ("Nodes", "Time Limit")}'),
    fails="defaults",
)
def missing_but_not_empty():
    """dict.get has a default for what is missing only."""


@instead("form_to_script", ("    if mistakes:\n", "    if False:\n"), fails="limits")
def believes_the_form():
    """sbatch will say it, in an hour."""


@instead("form_to_script", ('"; ".join(mistakes)', "mistakes[0]"), fails="every mistake is named")
def the_first_mistake():
    """The next one comes to light at the next attempt."""


# ------------------------------------------------------------------------------------------ container_command


@instead("container_command", ("*options, image,", "image, *options,"), fails="the program in the image")
def options_behind_the_image():
    """What stands behind the image is the program."""


@instead(
    "container_command",
    ('words = [*site["launcher"], ', "words = ["),
    ("image, *command]", 'image, *site["launcher"], *command]'),
    fails="one container per task",
)
def launcher_in_the_image():
    """The image has no srun, and if it had, not the machine's."""


@instead("container_command", ('["--rocm"]', '["--nv"]'), ("None: []", 'None: ["--nv"]'), fails="GPUs")
def always_nvidia():
    """On LUMI the GPUs are AMD's."""


@instead("container_command", ('["module purge", ', "["), fails="modules")
def on_top_of_what_is_loaded():
    """What .bashrc has loaded stays loaded."""


@instead("container_command", ('for there in site["mounted"])', "for there in [])"), fails="folders")
def binds_all():
    """What is mounted anyway is bound once more."""


@instead(
    "container_command",
    ('sorted(site["folders"].items())', 'reversed(site["folders"].items())'),
    fails="a folder within a folder",
)
def the_other_way_round():
    """Right where the inner folders were named first."""


@instead("container_command", ("shlex.join(words)", '" ".join(words)'), fails="words stay whole")
def joined_by_blanks():
    """The shell splits what was one word."""


# ----------------------------------------------------------------------------------------------- cpu_bind_map


@instead(
    "cpu_bind_map",
    ("[cpu for cpu in cpus[numa] if cpu in usable]", "sorted(usable)"),
    ("nodes[:gpu].count(numa) * (len(own) // nodes.count(numa))", "gpu * (len(own) // len(nodes))"),
    fails="any machine",
)
def gpu_beside_node_of_its_number():
    """GPU 0 beside core 0: the order in which Slurm would deal the cores out."""


@instead(
    "cpu_bind_map",
    ('    if node["allowed"] is not None:\n        usable &= set(node["allowed"])\n', ""),
    fails="allowed cores",
)
def reserved_cores_too():
    """Forgets that the first core of each eight is not the job's: srun refuses such a map."""


@instead("cpu_bind_map", (' // node["threads_per_core"]', ""), fails="hardware threads")
def threads_are_cores():
    """Deals out second hardware threads as if they were cores."""


@instead("cpu_bind_map", ('if node["allowed"] is not None:', "if True:"), fails="real machines")
def always_a_list():
    """Where nothing is said of what the job may use, it may use all."""


@instead(
    "cpu_bind_map",
    (
        '    if node["allowed"] is not None:\n        usable &= set(node["allowed"])\n',
        '    if node["allowed"] is not None:\n'
        '        usable &= set(node["allowed"])\n'
        "    else:\n"
        "        usable = set(range(sum(map(len, cpus))))\n",
    ),
    fails="real machines",
)
def all_cpus_if_nothing_is_said():
    """Where nothing is said of what the job may use, second threads are no cores either."""


# --------------------------------------------------------------------------------------------- misplaced_cpus


@instead(
    "misplaced_cpus",
    (
        "for cpu in range(mask.bit_length()) if mask >> cpu & 1]",
        'for cpu, bit in enumerate(f"{mask:b}") if bit == "1"]',
    ),
    fails="masks",
)
def bits_from_the_left():
    """The last digit of a number is its smallest."""


@instead(
    "misplaced_cpus",
    (
        "right = set(cpus[nodes[rank]])",
        "count = len(cpus)\n"
        "        right = {cpu for cpu in range(2 * cores) if cpu * count // cores % count == nodes[rank]}",
    ),
    fails="beside the GPU",
)
def node_by_division():
    """Takes for granted that NUMA nodes have consecutive cores."""


@instead("misplaced_cpus", ('if node["allowed"] is not None:', "if False:"), fails="allowed")
def all_cpus_of_the_node():
    """Forgets what the job may not use."""


@instead(
    "misplaced_cpus",
    ("{cpu % cores for other in others for cpu in given[other]}", "set()"),
    fails="one rank per core",
)
def each_rank_for_itself():
    """Two ranks on one core are not seen."""


@instead("misplaced_cpus", ('if kind == "mask_cpu":', "if kind:"), fails="maps")
def masks_only():
    """A CPU's number is read as a mask."""


# ----------------------------------------------------------------------------------------------- batch_script


@instead("batch_script", ("#SBATCH --job-name=train", "set -e"), fails="sbatch reads it")
def options_after_a_command():
    """Loads what it needs first; from there on sbatch ignores every #SBATCH."""


@instead("batch_script", ("00:30:00", "0:30"), fails="what is asked for")
def half_a_minute():
    """0:30 is minutes and seconds."""


@instead(
    "batch_script",
    ("srun --kill-on-bad-exit=1 {command}", 'srun bash -c "{command}"'),
    fails="one task per GPU",
)
def quoted_twice():
    """The quotes of the command end those round it."""


@instead(
    "batch_script",
    ('$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)', "localhost"),
    fails="a meeting place",
)
def everybody_at_home():
    """On the second node localhost is the second node."""


@instead(
    "batch_script",
    ("set -euo pipefail\n", ""),
    ("srun --kill-on-bad-exit=1 {command}", 'srun {command}\necho "done at $(date)"'),
    fails="fails with the training",
)
def says_done():
    """The echo succeeds, so the job does."""


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


# -------------------------------------------------------------------------------------------- save_checkpoint


@instead(
    "save_checkpoint",
    ("    temporary = path", "    if path.exists():\n        return\n    temporary = path"),
    fails="can be loaded",
)
def never_overwrites():
    """A checkpoint that is there is left as it is."""


@instead(
    "save_checkpoint", ("            os.fsync(file.fileno())\n", ""), fails="on the disk before its name"
)
def rename_only():
    """The usual recipe; it survives a kill, and no power failure."""


@instead("save_checkpoint", ("os.fsync(folder)", "pass"), fails="the directory too")
def forgets_the_directory():
    """The bytes are on the disk, the name may not be."""


@instead("save_checkpoint", ("        temporary.unlink(missing_ok=True)\n", ""), fails="when writing fails")
def leaves_it_to_the_next():
    """On a full disk the half-written file stays, and fills it."""


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
    os.sync()


# ------------------------------------------------------------------------------------------------ load_latest


@instead(
    "load_latest",
    ("sorted(steps, key=steps.get, reverse=True)", "sorted(steps, reverse=True)"),
    fails="newest",
)
def names_sorted_as_texts():
    """step-9.pt comes after step-10.pt."""


@instead(
    "load_latest", ("    return None\n", "    raise FileNotFoundError(directory)\n"), fails="nothing there"
)
def a_first_start_is_an_error():
    """Nobody has thought of the first start."""


@instead("load_latest", ('"step-*.pt"', '"*"'), ("re.fullmatch(", "re.search("), fails="other files")
def searches_in_the_name():
    """re.search finds step-12.pt in step-12.pt.tmp and in old-step-12.pt."""


@instead(
    "load_latest",
    ('warnings.warn(f"{path.name} is skipped: {error}", stacklevel=2)', "raise"),
    fails="torn files",
)
def trusts_the_newest():
    """A kill while writing, and nothing starts any more."""


@instead("load_latest", ("if damaged is None:", "if True:"), fails="damaged inside")
def trusts_torch_load():
    """torch.load does not look at the checksums."""


@instead(
    "load_latest",
    ('warnings.warn(f"{path.name} is skipped: {error}", stacklevel=2)', "continue"),
    ('warnings.warn(f"{path.name} is skipped: {damaged} in it is damaged", stacklevel=2)', "continue"),
    fails="tells and keeps",
)
def without_a_word():
    """A thousand steps are lost, and nobody knows."""


# ----------------------------------------------------------------------------------------------------- resume


@instead("resume", ("math.ceil(samples / batch_size)", "samples // batch_size"), fails="trains")
def drops_the_last_batch():
    """len(samples) // batch_size steps an epoch."""


@instead("resume", ("manual_seed(epoch)", "manual_seed(7)"), fails="shuffles each epoch")
def one_order_for_all():
    """The generator is seeded with the same number in every epoch."""


@instead(
    "resume",
    ("if step % save_every == 0 or step == last:", "if position % save_every == 0:"),
    ('f"step-{step}.pt"', 'f"step-{position}.pt"'),
    fails="saves",
)
def counts_in_each_epoch():
    """Saves by the number of the batch in its epoch, which each epoch counts anew."""


@instead("resume", ('        step = state["step"]\n', ""), fails="goes on")
def weights_only():
    """Loads the weights and begins at step 0."""


@instead(
    "resume",
    ('        training.optimizer.load_state_dict(state["optimizer"])\n', ""),
    fails="model and optimizer",
)
def forgets_the_optimizer():
    """The momentum begins at zero again."""


@instead("resume", ('        torch.set_rng_state(state["random"])\n', ""), fails="random state")
def forgets_the_random_state():
    """Dropout draws after the restart what it drew at the beginning."""


@instead("resume", ('step = state["step"]', 'step = min(state["step"], last - 1)'), fails="killed anywhere")
def trains_on_after_the_end():
    """Started again after the end, it makes the last step once more."""


# --------------------------------------------------------------------------------------------- save_on_signal


@instead("save_on_signal", ("    return done\n", "    return done - 1\n"), fails="trains to the end")
def one_step_short():
    """Returns the number of the last step."""


@instead("save_on_signal", ("        dist.all_reduce(told)\n", ""), fails="all stop after the same step")
def each_for_itself():
    """The others wait for it in the next step."""


@instead(
    "save_on_signal",
    ("set_handler(number, note)", "set_handler(number, signal.SIG_IGN)"),
    fails="both signals",
)
def ignores_signals():
    """Until SIGKILL comes, which nobody can ignore."""


@instead("save_on_signal", ("if dist.get_rank() == 0:", "if True:"), fails="one writes")
def all_write():
    """All ranks write one file at the same time."""


@instead("save_on_signal", ("told.item() > 0", "told.item() > 0 or asked"), fails="whenever it comes")
def its_own_eyes_too():
    """What came after the sum was taken is known to this rank alone."""


@instead(
    "save_on_signal",
    ("        dist.all_reduce(told)\n", "        dist.barrier()\n        dist.all_reduce(told)\n"),
    fails="one number per step",
)
def asks_and_waits():
    """A barrier in each step that nobody needs."""


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
