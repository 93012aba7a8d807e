# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Many nodes: start the job, place it, and survive its failures
#
# More GPUs than one machine holds stand in several machines. Your training code stays as it is. What is new lies
# around it: a batch system lends you nodes, a launcher starts your program on each, the ranks have to find each
# other. And in a long run on many machines something fails.
#
# After this unit you can
#
# - ask a cluster for nodes, by a portal's form or a batch script, and say what each number means;
# - tell rank, local rank and node rank apart under each launcher;
# - start a job with torchrun, srun and mpirun, in a container too, and bind each rank to the cores beside its GPU;
# - choose how often to save, save safely, and resume bit for bit;
# - let a job go on with fewer or more workers without changing what it learns.

# %% tags=["parameters"]
# For the demonstrations: their number of ranks, unless the text says otherwise; and whether these are "simulated" or
# "processes".
ranks = 4
on = "simulated"

# %%
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import warnings
import zipfile
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist

from course_lib.training.checkpoints import Training
from graders import check, hint, predict, progress, reset

# %% [markdown]
# ## The picture

# %% demo=true jupyter={"source_hidden": true}
# What the demonstrations use.
# %load_ext course_lib.notebook.magics
import inspect
import io
import json
import random
import tempfile
import threading
import time

from torch import nn
from torch.nn import functional

from course_lib import Cluster, RankFailed, launch
from course_lib.data import load
from course_lib.figures.plots import draw_lines, line_figure
from course_lib.figures.style import COLOURS, new_figure
from course_lib.notebook.widgets import Slider, explore
from course_lib.slurm.sites import site_named
from course_lib.slurm.virtual.lifecycle import ClusterFailed, Shape, temporary_cluster

# %% demo=true
from course_lib.figures.pictures import cluster_picture

cluster_picture()

# %% [markdown]
# You never start a program on a compute node. You tell the **batch system** what you need and what is to run; it
# decides when and where. On most large machines it is Slurm.
#
# **Predict, before you measure.** Write your guesses into the cell below.
#
# 1. Eight ranks on two nodes form a ring, each sends to the next. How many of the eight connections lead over the
#    network if the ranks fill one node after the other? If the nodes get ranks in turn? (Section 5)
# 2. A script says `--ntasks=4 --nodes=2`. How many tasks does each node get, such as "2 and 2"? (Section 6)
# 3. A node of LUMI has 64 cores, numbered from 0, and eight GPUs, each beside one quarter of the cores. Beside which
#    quarter is GPU 0, from 1 to 4? (Section 7)
# 4. A node fails once in 264 days, and a checkpoint takes two minutes. How often should a job on 2,048 nodes save?
#    (Section 9)
# 5. One GPU of a thousand computes at half the speed. How many times as long does a step of all thousand take?
#    (Section 14)

# %% demo=true
guesses = predict(
    "03_multi_node",
    connections_over_the_network_in_blocks=None,
    connections_over_the_network_in_turn=None,
    tasks_of_the_first_and_the_second_node=None,
    quarter_of_the_cores_beside_gpu_0=None,
    minutes_between_two_checkpoints=None,
    times_as_long_a_step_with_one_slow_gpu=None,
)

# %% [markdown]
# ## 1 Login nodes and compute nodes
#
# **Login nodes** are shared by everybody. Edit, install and hand in jobs there; programs that compute there are
# ended. **Compute nodes** are yours while your job runs. Both see the **shared file system**. Often only login nodes
# reach the internet, so fetch data and packages there, once.
#
# A **portal** is a web page that starts Jupyter for you as a job on a compute node. Its form asks for what every job
# needs. Here is the form of the portal of TACC, the Texas Advanced Computing Center, whose supercomputers include
# Frontera and Vista:
#
# | Form | Script | Meaning |
# |---|---|---|
# | System, Application | | the machine; what to start, such as Jupyter |
# | Project | `--account` | whose budget pays |
# | Queue | `--partition` | a kind of node, with limits on number and time |
# | Nodes | `--nodes` | how many machines |
# | Tasks | `--ntasks` | how many processes altogether: for training, one per GPU |
# | Job Name | `--job-name` | its name in lists; at most 20 characters |
# | Time Limit | `--time` | when the job is ended, finished or not; two hours if empty |
# | Reservation | `--reservation` | nodes kept free for a course |
# | VNC Desktop Resolution | | a desktop's picture; Jupyter needs none |
#
# Closing the browser does not end the job: it costs until its time is up or you end it. With two nodes, Jupyter runs
# on the first, and the second stands idle until something is started there. Sites differ: only Frontera has a queue
# `rtx`, LUMI wants `--account`, TACC refuses `--mem`. `course doctor` says what holds where you are:

# %% demo=true
from course_lib.slurm.doctor import findings, look_around

for heading, text in findings(look_around()):
    print(f"{heading:12} {text}")

# %% [markdown]
# ## 2 The names of the nodes
#
# The variable `SLURM_JOB_NODELIST` says which nodes Slurm gave you, in a short form: `c101-[001-004,007]` on
# Frontera, `nid[005000-005003]` on LUMI, a supercomputer in Finland. The numbers are texts: leading zeros belong to
# the name. A comma separates names outside of brackets, but numbers and ranges inside. The numbers of a range are
# filled with zeros to the width of its first: `n[08-11]` is n08, n09, n10, n11. Of two brackets the second counts
# faster: `a[1-2]b[1-2]` is a1b1, a1b2, a2b1, a2b2.


# %% exercise="expand_hostlist" points=6
def expand_hostlist(text: str) -> list[str]:
    """The host names that Slurm's short form stands for, in order.

    text: names separated by commas, such as "login1,c101-[001-004,007]". A name has at most two
        brackets, the last of them at its end.

    A name that comes twice is kept twice; "" gives []. Do not call scontrol: it must work without
    Slurm.
    """
    ### BEGIN SOLUTION
    hosts = []
    for name in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", text):
        # Splitting by the brackets leaves what stands between them at the even places.
        pieces = re.split(r"\[([^\]]*)\]", name)
        choices = [_numbers(piece) if place % 2 else [piece] for place, piece in enumerate(pieces)]
        hosts += ["".join(parts) for parts in product(*choices)]
    return hosts


def _numbers(ranges: str) -> list[str]:
    """The numbers of "001-003,007", as texts."""
    numbers = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        width = len(first)
        numbers += [f"{number:0{width}}" for number in range(int(first), int(last or first) + 1)]
    return numbers
    ### END SOLUTION


# %% demo=true
# %%needs expand_hostlist
print(expand_hostlist("c101-[001-004,007]"))
print(expand_hostlist("login1,nid[005000-005003]"))

# %% [markdown]
# The ranks meet on the first host (section 4).
#
# ## 3 Rank, local rank, node rank, world size
#
# Every process of a job needs four numbers:
#
# | | counts, from 0 | used to choose |
# |---|---|---|
# | **rank**, or global rank | this process among all | its part of the data |
# | **local rank** | this process on its node | its GPU |
# | **node rank** | this node among the nodes | which node fetches the data |
# | **world size** | (all processes) | how many parts there are |
#
# Each launcher puts them into environment variables of its own. Eight processes run, four on each of two nodes. The
# **third process on the second node** finds (as recorded, in part):
#
# | srun | torchrun | mpirun (Open MPI) | horovodrun |
# |---|---|---|---|
# | `SLURM_JOB_NUM_NODES=2` | `GROUP_RANK=1` | `OMPI_COMM_WORLD_LOCAL_RANK=2` | `HOROVOD_CROSS_RANK=1` |
# | `SLURM_LOCALID=2` | `GROUP_WORLD_SIZE=2` | `OMPI_COMM_WORLD_LOCAL_SIZE=4` | `HOROVOD_CROSS_SIZE=2` |
# | `SLURM_NODEID=1` | `LOCAL_RANK=2` | `OMPI_COMM_WORLD_NODE_RANK=2` | `HOROVOD_LOCAL_RANK=2` |
# | `SLURM_NTASKS=8` | `LOCAL_WORLD_SIZE=4` | `OMPI_COMM_WORLD_RANK=6` | `HOROVOD_LOCAL_SIZE=4` |
# | `SLURM_PROCID=6` | `RANK=6` | `OMPI_COMM_WORLD_SIZE=8` | `HOROVOD_RANK=6` |
# | `SLURM_STEP_ID=0` | `WORLD_SIZE=8` | `PMIX_RANK=6` | `HOROVOD_SIZE=8` |
#
# Find the four numbers in each column. Go by the values: one name promises what it does not hold. (`PMIX_RANK` exists
# under `srun --mpi=pmix`, too.)
#
# Environment variables are inherited, so nested launchers leave several sets. With `srun torchrun`, one torchrun per
# node, Slurm's describe the torchruns, not the workers. A batch script that asks for 8 tasks is a single process,
# which no srun has started; still it has `SLURM_PROCID=0` and `SLURM_NTASKS=8`. If it calls mpirun, the ranks on the
# first node inherit these. On every other node mpirun starts a helper through srun, and the ranks there inherit the
# helper's. Here such a script has run `mpirun -n 8` on two nodes of a virtual cluster, if Slurm and Open MPI are
# installed:

# %% demo=true jupyter={"source_hidden": true}

NAMES = ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID")
NOTE = f"""
import os
from pathlib import Path
names = {NAMES}
said = [os.uname().nodename, *(os.environ.get(name, "(not set)") for name in names)]
(Path(__file__).parent / ("rank-" + said[1])).write_text(" ".join(f"{{word:>21}}" for word in said))
"""


def under_mpirun() -> list[str]:
    """What eight ranks find in their environments, one line per rank. Raises ClusterFailed."""
    if shutil.which("mpirun") is None:
        raise ClusterFailed("Open MPI is not installed here.")
    with temporary_cluster(Shape(nodes=2)) as cluster:
        (cluster.shared / "note.py").write_text(NOTE)
        script = cluster.shared / "job.sbatch"
        script.write_text(
            "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n"
            "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n"
            f"mpirun -n 8 --map-by ppr:4:node {sys.executable} {cluster.shared}/note.py\n"
        )
        submit = ["sbatch", "--wait", f"--output={cluster.shared}/out", script]
        done = cluster.run(submit, capture_output=True, timeout=120)
        assert done.returncode == 0, (cluster.shared / "out").read_text()
        return [(cluster.shared / f"rank-{rank}").read_text() for rank in range(8)]


try:
    found = under_mpirun()
    print(" ".join(f"{word:>21}" for word in ("", *NAMES)), *found, sep="\n")
    for rank, line in enumerate(found):
        tasks_and_step = ["8", "(not", "set)"] if rank < 4 else ["1", "0"]
        assert line.split() == [f"node{rank // 4 + 1}", str(rank), "0", *tasks_and_step], line
except ClusterFailed as missing:
    print(missing)

# %% [markdown]
# All eight have `SLURM_PROCID=0`; only `OMPI_COMM_WORLD_RANK` tells which rank this is. The first four have no
# `SLURM_STEP_ID`, the others have the helper's. Which variable tells a task of srun from the batch script itself?
#
# Your function has to know. Two more things: mpirun does not tell the number of the node; under it, ranks fill one node
# after another, and all nodes have equally many. And users may set `MASTER_ADDR` and `WORLD_SIZE` themselves, under any
# launcher or none.


# %% exercise="rank_from_environment" points=7
def rank_from_environment(env: dict[str, str]) -> dict[str, int]:
    """This process's place among all, whatever has started it.

    env: environment variables, as in os.environ; they stay as they are.
    Returns {"rank": ..., "local_rank": ..., "node_rank": ..., "world_size": ...}: whole numbers.

    If launchers are nested, the one that started this process counts: torchrun's, Horovod's or Open
    MPI's variables, where there are any, before Slurm's. A process that no launcher has started, such
    as a batch script itself, is rank 0 of 1 on node 0.
    """
    ### BEGIN SOLUTION
    if "RANK" in env:
        names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE")
    elif "HOROVOD_RANK" in env:
        names = ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_CROSS_RANK", "HOROVOD_SIZE")
    elif "OMPI_COMM_WORLD_RANK" in env:
        rank, local_size = int(env["OMPI_COMM_WORLD_RANK"]), int(env["OMPI_COMM_WORLD_LOCAL_SIZE"])
        env = env | {"NODE": str(rank // local_size)}
        names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "NODE", "OMPI_COMM_WORLD_SIZE")
    elif "SLURM_STEP_ID" in env:
        names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS")
    else:
        return {"rank": 0, "local_rank": 0, "node_rank": 0, "world_size": 1}
    values = (int(env[name]) for name in names)
    return dict(zip(("rank", "local_rank", "node_rank", "world_size"), values, strict=True))
    ### END SOLUTION


# %% demo=true
# %%needs rank_from_environment
rank_from_environment(
    {
        "SLURM_PROCID": "5",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "1",
        "SLURM_NTASKS": "8",
        "SLURM_STEP_ID": "0",
    }
)

# %% [markdown]
# ## 4 Where the ranks meet
#
# A process that knows its rank does not yet know where the others are. All agree on a place: `MASTER_ADDR` and
# `MASTER_PORT`. There rank 0 listens and keeps a table, the **store**. Every rank writes into it where it can be
# reached, and reads where the others can. This is the **rendezvous**; afterwards they talk directly. A store and a
# visitor:

# %% demo=true
store = dist.TCPStore("127.0.0.1", 0, is_master=True)
visitor = dist.TCPStore("127.0.0.1", store.port, is_master=False)
visitor.set("where rank 1 is", "node1, port 40123")
read = store.get("where rank 1 is").decode()
print(f"rank 0 listens at port {store.port} and reads:", read)
assert read == "node1, port 40123"
del visitor, store

# %% [markdown]
# So `MASTER_ADDR` must be a name by which **every** node reaches the node of rank 0: the first host of the job's
# list. `localhost` is on each node that node itself. `MASTER_PORT` is any port that is free there; two jobs on one
# node need two.
#
# torchrun needs no `MASTER_ADDR` from you. It starts one **agent** on each node. The agents meet at
# `--rdzv-endpoint`, agree on who is there, and tell their workers rank, world size and `MASTER_ADDR`. After a failure
# they meet again and deal out new numbers. So a job that may run with fewer nodes survives the loss of a node, unless
# it is the one that `--rdzv-endpoint` names. With srun the ranks meet only once; if one is lost, the job cannot go
# on. Slurm itself ends a job that loses a node, unless it was submitted with `--no-kill`.
#
# ## 5 One job, four ways to start it
#
# A program that prints where it is, by your function, under two launchers:

# %% demo=true jupyter={"source_hidden": true}


def start(command: str) -> None:
    """Run a command line, if its launcher is installed; show the line of each rank, in the order of the ranks."""
    words = shlex.split(command)
    if shutil.which(words[0]) is None:
        print(f"{words[0]} is not installed here")
        return
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # With no other node to go to. Else mpirun asks for ssh all the same, which containers often lack.
    no_ssh = {"OMPI_MCA_plm_rsh_agent": "sh"}
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "PMI"))
    }
    done = subprocess.run(
        words, env=own | as_root | no_ssh, capture_output=True, text=True, timeout=300, check=False
    )
    print(f"$ {command}".replace(f"{folder}/", "").replace(python, "python"))
    lines = sorted(done.stdout.splitlines(), key=lambda line: int(line.split()[1]))
    print(*lines, sep="\n")
    assert done.returncode == 0, done.stderr
    assert lines == [f"rank {k} of {ranks}, local rank {k} on node 0" for k in range(ranks)]


# %% demo=true
# %%needs rank_from_environment
python = shlex.quote(sys.executable)
folder = Path(tempfile.mkdtemp(prefix="unit-03-"))
program = folder / "where.py"
body = """
import os, sys
place = rank_from_environment(dict(os.environ))
line = "rank {rank} of {world_size}, local rank {local_rank} on node {node_rank}\\n"
sys.stdout.write(line.format(**place))
"""
program.write_text(inspect.getsource(rank_from_environment) + body)
# `torchrun` is another name of `python -m torch.distributed.run`. Some laptops' names lead to no address: on one
# machine workers can meet at localhost.
agent = f"{python} -m torch.distributed.run --standalone --local-addr=localhost"
start(f"{agent} --nproc-per-node={ranks} {program}")
start(f"mpirun --oversubscribe -n {ranks} {python} {program}")
shutil.rmtree(folder)

# %% [markdown]
# The same job on two nodes of four GPUs, in an allocation of Slurm:
#
# ```bash
# export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) MASTER_PORT=29500
#
# # torchrun: srun starts one agent per node, each agent four workers
# srun --ntasks-per-node=1 torchrun --nnodes=2 --nproc-per-node=4 --rdzv-id="$SLURM_JOB_ID" \
#      --rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:29400" train.py
#
# # srun starts all eight
# srun --ntasks=8 --ntasks-per-node=4 python train.py
#
# # mpirun starts all eight; it learns from Slurm which nodes there are
# mpirun -n 8 --map-by ppr:4:node python train.py
# ```
#
# At TACC the fourth is `ibrun python train.py`, which knows the site's network. Take torchrun where failed workers
# have to be restarted (section 8), otherwise the site's launcher.
#
# **In which order?** srun deals ranks to nodes by `--distribution`: `block` fills one node after the other, `cyclic`
# gives one to each node in turn, `plane=2` two. Most libraries assume blocks. In the picture, thick lines lead over
# the network.
#
# **Question for the sliders:** how does each order change when a node has more GPUs?

# %% demo=true
from course_lib.figures.pictures import network_hops, placement_picture


def dealt(distribution: str, gpus: int, nodes: int = 2) -> list[int]:
    """For each rank its node, as srun --distribution would place it."""
    plane = {"block": gpus, "plane=2": 2, "cyclic": 1}[distribution]
    return [rank // plane % nodes for rank in range(nodes * gpus)]


def ring_on_nodes(distribution: str, gpus: int):
    """The ring of all ranks, and how much of it lies between the nodes."""
    places = dealt(distribution, gpus)
    title = f"{distribution}: {network_hops(places)} of {len(places)} connections lead over the network"
    return placement_picture(places, title)


explore(
    ring_on_nodes,
    distribution=Slider(["block", "plane=2", "cyclic"], label="--distribution"),
    gpus=Slider([2, 4, 8], start=4, label="GPUs per node"),
)

# %% demo=true jupyter={"source_hidden": true}

for gpus in (2, 4, 8):
    connections = 2 * gpus
    assert network_hops(dealt("block", gpus)) == 2
    assert network_hops(dealt("plane=2", gpus)) == (2 if gpus == 2 else connections // 2)
    assert network_hops(dealt("cyclic", gpus)) == connections
guesses.measured(
    connections_over_the_network_in_blocks=network_hops(dealt("block", 4)),
    connections_over_the_network_in_turn=network_hops(dealt("cyclic", 4)),
)

# %% [markdown]
# The first prediction: two of eight in blocks, all eight in turn. In blocks it is one connection per node, however
# many GPUs the nodes have. In turn, more GPUs per node make it worse. With `plane=2` it is every second connection,
# as soon as a node has more than two GPUs.
#
# ## 6 A batch script
#
# Slurm has three parts. **slurmctld**, one for the cluster, keeps the queue and decides which job gets which nodes.
# **slurmd**, one per node, starts a job's processes there, and ends them. **slurmdbd** keeps accounts in a database.
# The commands:
#
# | Command | What it does |
# |---|---|
# | `sinfo` | lists partitions and nodes: idle, allocated, down |
# | `squeue --me` | lists your jobs, and why they wait |
# | `sbatch FILE` | hands in a script, prints the job's number, and returns |
# | `salloc` | waits for nodes, and gives you a shell that holds them |
# | `srun` | starts tasks on the nodes that you hold; if you hold none, asks for some first |
# | `scancel JOB` | ends a job |
# | `scontrol show job JOB` | tells what slurmctld knows of a job |
# | `sacct -j JOB` | tells what became of it, long after it has ended |
#
# A **batch script** is a shell script whose first lines tell Slurm what it needs. When the nodes are there, Slurm
# runs it **once, on the first node**. From there, srun starts what is to run on all of them.
#
# For bash the lines `#SBATCH --option=value` are comments. sbatch reads them up to the first command. It silently
# ignores those that come later or are written `# SBATCH`, and does not expand variables in them. Four options count:
# `--nodes`, `--ntasks-per-node`, `--gpus-per-node`, and `--time`. Who asks for less time starts sooner.


# %% exercise="batch_script" points=8
def batch_script(nodes: int, gpus_per_node: int, command: str) -> str:
    """The text of a Slurm batch script that runs `command` on every GPU of several nodes.

    command: one program and its arguments, already quoted for a shell.

    It asks for `nodes` nodes with `gpus_per_node` GPUs each, for 10 to 30 minutes, and names no
    partition, account or host. One srun starts the command, one task for each GPU. Each task finds
    MASTER_ADDR (the job's first host) and MASTER_PORT (another in each job) in its environment. If the
    command fails, so does the job.
    """
    ### BEGIN SOLUTION
    return f"""#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={gpus_per_node}
#SBATCH --gpus-per-node={gpus_per_node}
#SBATCH --time=00:30:00
#SBATCH --output=%x-%j.out

set -euo pipefail
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
srun --kill-on-bad-exit=1 {command}
"""
    ### END SOLUTION


# %% [markdown]
# `check` also runs your script, if Slurm is installed, on a virtual cluster of six nodes (`course cluster start`
# gives you one). In place of the training it runs a program that looks where its processes are and lets them meet at
# `MASTER_ADDR`.
#
# For the second prediction, ask a real Slurm, on a virtual cluster whose nodes have 8 cores:

# %% demo=true jupyter={"source_hidden": true}

try:
    with temporary_cluster(Shape(nodes=2)) as cluster:
        print("$ sinfo", cluster.run(["sinfo"], capture_output=True, timeout=60).stdout, sep="\n")
        for request in (["--nodes=2", "--ntasks=4"], ["--nodes=2", "--ntasks-per-node=2"]):
            done = cluster.run(["srun", *request, "hostname"], capture_output=True, timeout=60)
            assert done.returncode == 0, done.stderr
            tasks = sorted(map(done.stdout.split().count, ("node1", "node2")), reverse=True)
            print(f"srun {' '.join(request):33} gives the nodes {tasks[0]} and {tasks[1]} tasks")
            assert tasks == ([3, 1] if "--ntasks=4" in request else [2, 2])
            if "--ntasks=4" in request:
                guesses.measured(tasks_of_the_first_and_the_second_node=f"{tasks[0]} and {tasks[1]}")
except ClusterFailed as missing:
    print(missing)

# %% [markdown]
# `--ntasks=4 --nodes=2` gives three tasks to one node and one to the other: every node gets one, and then Slurm fills
# the first. Say `--ntasks-per-node`.
#
# ### What it costs
#
# A job is charged for what it holds, whether or not it computes: at most nodes times time limit. TACC counts service
# units (SUs): node-hours times a rate of the partition. LUMI counts hours of cards, each of two GPUs.
# `course slurm submit` says what a script may cost. Yours:

# %% demo=true
# %%needs batch_script
from course_lib.slurm.cost import cost_of
from course_lib.slurm.lint import Script

yours = Script(batch_script(2, 4, "python train.py"))
for name in ("frontera", "lumi"):
    cost = cost_of(yours, site_named(name))
    print(cost.sentence(site_named(name)))

# %% demo=true jupyter={"source_hidden": true}
# %%holds batch_script
assert cost.gpu_minutes == 2 * 4 * cost.hours * 60
assert 80 <= cost.gpu_minutes <= 240

# %% [markdown]
# ### The form, once more
#
# A portal turns its form into such a script. The cell below the exercise has the form of section 1 as one of TACC's
# courses fills it in. The table in section 1 says which option each field has. Besides:
#
# | Field | If it is empty | Wrong is |
# |---|---|---|
# | System, Queue | it is wrong | what is not in `queues` |
# | Nodes | 1 | what is not digits; 0; more than the queue's |
# | Tasks | as many as nodes | what is not digits; 0; fewer than nodes |
# | Time Limit | 2:0:0 | what is not hours:minutes:seconds; zero; longer than the queue's |
# | Job Name | no such option | more than 20 characters |
# | Project, Reservation | no such option | |
#
# The portal reports all mistakes at once. In a line of `#SBATCH` a value with blanks is quoted as for a shell:
# `#SBATCH --job-name='my job'`.


# %% exercise="form_to_script" points=8
def form_to_script(form: dict[str, str], queues: dict[str, dict[str, dict[str, int]]]) -> str:
    """The batch script for TACC's portal's form.

    form: field -> what was typed in. A missing field counts as empty.
    queues: system -> queue -> its limits, {"nodes": most, "hours": longest}.

    Returns a script that asks for what the form says, by the two tables, and for nothing else. Its last
    line is `jupyter lab --no-browser`.
    If any field is wrong, raises a ValueError that names every wrong field, and where a largest value
    is exceeded, that value.
    """
    ### BEGIN SOLUTION
    field = {name: text for name, text in form.items() if text}
    limits = queues.get(field.get("System"), {}).get(field.get("Queue"), {})
    nodes, name = field.get("Nodes", "1"), field.get("Job Name", "")
    tasks, time_limit = field.get("Tasks", nodes), field.get("Time Limit", "2:0:0")
    mistakes = []
    if field.get("System") not in queues:
        mistakes.append(f"System: choose one of {', '.join(queues)}")
    elif not limits:
        mistakes.append(f"Queue: choose one of {', '.join(queues[field['System']])}")
    if _whole(nodes) < 1:
        mistakes.append("Nodes: a whole number from 1 on")
    elif _whole(nodes) > limits.get("nodes", math.inf):
        mistakes.append(f"Nodes: this queue gives at most {limits['nodes']}")
    if _whole(tasks) < max(1, _whole(nodes)):
        mistakes.append("Tasks: a whole number, at least one per node")
    if len(name) > 20:
        mistakes.append("Job Name: at most 20 characters")
    if _time(time_limit) == (0, 0, 0):
        mistakes.append("Time Limit: hours:minutes:seconds, such as 2:0:0")
    elif _time(time_limit) > (limits.get("hours", math.inf), 0, 0):
        mistakes.append(f"Time Limit: this queue gives at most {limits['hours']} hours")
    if mistakes:
        raise ValueError("; ".join(mistakes))
    options = {
        "job-name": name,
        "partition": field["Queue"],
        "nodes": nodes,
        "ntasks": tasks,
        "time": time_limit,
        "account": field.get("Project"),
        "reservation": field.get("Reservation"),
    }
    lines = [f"#SBATCH --{option}={shlex.quote(value)}\n" for option, value in options.items() if value]
    return f"#!/bin/bash\n{''.join(lines)}\njupyter lab --no-browser\n"


def _whole(text: str) -> int:
    """The number, or 0 if it is none."""
    return int(text) if re.fullmatch("[0-9]+", text) else 0


def _time(text: str) -> tuple[int, ...]:
    """Hours, minutes and seconds of "2:0:0"; no time if the text is none such."""
    found = re.fullmatch(r"(\d+):([0-5]?\d):([0-5]?\d)", text)
    return tuple(map(int, found.groups())) if found else (0, 0, 0)
    ### END SOLUTION


# %% demo=true
# %%needs form_to_script
# An example's limits: those of the day are in the system's user guide.
tacc = {"Frontera": {"rtx": {"nodes": 22, "hours": 48}, "rtx-dev": {"nodes": 2, "hours": 2}}}
lecture = {
    "System": "Frontera",
    "Application": "Jupyter notebook",
    "Project": "Frontera-Training",
    "Queue": "rtx",
    "Nodes": "1",
    "Tasks": "1",
    "Time Limit": "04:00:00",
    "Reservation": "ML_Institute_Thu",
}
print(form_to_script(lecture, tacc))
try:
    form_to_script(lecture | {"Queue": "rtx-dev", "Nodes": "3", "Tasks": "3"}, tacc)
except ValueError as mistakes:
    print("Not accepted:", mistakes)

# %% [markdown]
# ### Programs: modules and containers
#
# A cluster has many versions of compilers and libraries. A **module** puts one of them on your paths:
# `module load cuda/12.4`, in short `ml cuda/12.4`. `module purge` unloads all, also what your shell has loaded at its
# start.
#
# A **container** brings its own files, in one **image**: Python, PyTorch, and all that they need. Docker wants rights
# that no cluster gives; Apptainer, called Singularity until 2021, runs as you. On ACES, a supercomputer of Texas A&M
# University, compute nodes reach the internet through a proxy. There a course fetches NVIDIA's image of PyTorch,
# once, and looks inside:
#
# ```bash
# ml purge
# ml WebProxy
# singularity pull pytorch.sif docker://nvcr.io/nvidia/pytorch:23.06-py3
# singularity shell --nv pytorch.sif
# ```
#
# A batch script says `exec` in place of `shell`, and what is to run. Three things of the machine have to be handed
# in:
#
# - **GPUs**: the driver's libraries belong to the machine. `--nv` adds NVIDIA's, `--rocm` AMD's.
# - **Folders**: your home folder is there, other file systems often are not. `--bind SOURCE:TARGET:ro` shows a folder
#   of the machine in the container, read only; without `:ro` it can be written.
# - **Ranks**: srun or ibrun start processes on nodes, and know nothing of images.
#
# Names of files and arguments may hold any character; what means something to a shell has to be quoted.


# %% exercise="container_command" points=9
def container_command(site: dict, image: str, command: list[str]) -> str:
    """The lines of a batch script that run a program of an image, once for each task.

    site: "runtime": "apptainer" or "singularity".
        "gpus": "NVIDIA", "AMD", or None.
        "modules": those to load, in this order, and no others. Empty: there is no command `module`.
        "launcher": words that start something once for each task, such as ["srun", "--ntasks=4"].
        "mounted": folders that are in every container.
        "folders": path -> "read" or "write": all that may be done there. Each is bound to the same
            path, unless it lies in a mounted folder. One may lie inside another.
    Arguments stay as they are.
    """
    ### BEGIN SOLUTION
    lines = []
    if site["modules"]:
        lines += ["module purge", shlex.join(["module", "load", *site["modules"]])]
    options = {"NVIDIA": ["--nv"], "AMD": ["--rocm"], None: []}[site["gpus"]]
    for folder, mode in sorted(site["folders"].items()):  # A folder comes before those that lie in it.
        if not any(Path(folder).is_relative_to(there) for there in site["mounted"]):
            options += ["--bind", f"{folder}:{folder}:ro" if mode == "read" else folder]
    words = [*site["launcher"], site["runtime"], "exec", *options, image, *command]
    return "\n".join([*lines, shlex.join(words)])
    ### END SOLUTION


# %% demo=true
# %%needs container_command
aces = {
    "runtime": "singularity",
    "gpus": "NVIDIA",
    "modules": ["WebProxy"],
    "launcher": ["srun", "--ntasks-per-node=2"],
    "mounted": ["/home", "/tmp"],
    "folders": {"/scratch/images": "read", "/scratch/runs": "write"},
}
print(container_command(aces, "pytorch.sif", ["python", "train.py", "--note", "two words"]))

# %% [markdown]
# ## 7 The cores beside the GPU
#
# A processor consists of parts with their own memory, **NUMA nodes**, and each GPU is plugged into one of them. A
# rank on another part sends every batch through the links between the parts. To **bind** a rank is to allow it only
# some cores: those beside its GPU. A lecture counts 2,928 GPU nodes on LUMI. By this lecture and the user guide ([GPU
# nodes](https://docs.lumi-supercomputer.eu/hardware/lumig/)), each has:
#
# | Part | In a node |
# |---|---|
# | processor | one AMD EPYC 7A53, 64 cores in four NUMA nodes |
# | caches | L1 of 32 kB and L2 of 512 kB per core, L3 of 32 MB per eight cores |
# | memory | 512 GB, DDR4-3200 in eight channels, two per NUMA node |
# | GPUs | four AMD MI250X, each of two dies (GCDs) with 64 GB: eight GPUs for Slurm and PyTorch |
# | processor to GPU | Infinity Fabric, 36 GB/s to each die and 36 GB/s from it |
# | network | Slingshot-11, a card of 200 Gbit/s per MI250X: 25 GB/s in each direction, 800 Gbit/s per node |
#
# Such a node says of itself:

# %% demo=true
lumi = """
GPU[0]          : (Topology) Numa Node: 3
GPU[1]          : (Topology) Numa Node: 3
GPU[2]          : (Topology) Numa Node: 1
GPU[3]          : (Topology) Numa Node: 1
GPU[4]          : (Topology) Numa Node: 0
GPU[5]          : (Topology) Numa Node: 0
GPU[6]          : (Topology) Numa Node: 2
GPU[7]          : (Topology) Numa Node: 2
CPU(s):                  128
Thread(s) per core:      2
NUMA node0 CPU(s):       0-15,64-79
NUMA node1 CPU(s):       16-31,80-95
NUMA node2 CPU(s):       32-47,96-111
NUMA node3 CPU(s):       48-63,112-127
Cpus_allowed_list:	1-7,9-15,17-23,25-31,33-39,41-47,49-55,57-63
"""

# %% [markdown]
# These lines are from `rocm-smi --showtoponuma`, `lscpu` and `/proc/self/status`. GPU 0 is beside NUMA node 3. The
# CPUs from 64 on are second hardware threads of the cores 0 to 63: no cores of their own. And the system keeps the
# first of each eight cores for itself: a job that binds a rank to core 48 is refused.


# %% demo=true
from course_lib.cluster.numa import read_topology

lumi_node = read_topology(lumi)
for name, value in lumi_node.items():
    print(f"{name}: {value}")

# %% [markdown]
# `read_topology` also reads the table of `nvidia-smi topo -m`. It returns a dictionary: `numa_of_gpu`, for each GPU its
# NUMA node; `cpus_of_numa`, for each NUMA node its CPUs in ascending order; `threads_per_core`; and `allowed`, the CPUs
# that the job may use, `None` for all. Where cores have several hardware threads, all first threads have lower numbers
# than all second ones, and these than all third ones.
#
# Which core belongs to which GPU is yours to find. Deal them out in each NUMA node: take the cores that the job may use
# (first hardware threads only), in ascending order, and cut them into equal blocks, as long as possible, one for each
# GPU of that node. The GPU with the smaller number gets the earlier block.


# %% exercise="cpu_bind_map" points=7
def cpu_bind_map(node: dict) -> list[int]:
    """For each GPU of a node the core to which its rank is bound, in the order of the GPUs' numbers.

    node: as read_topology returns it.

    The core is the first of the GPU's block, if each NUMA node's cores are dealt out as described
    above.
    """
    ### BEGIN SOLUTION
    cpus, nodes = node["cpus_of_numa"], node["numa_of_gpu"]
    usable = set(range(sum(map(len, cpus)) // node["threads_per_core"]))
    if node["allowed"] is not None:
        usable &= set(node["allowed"])
    cores = []
    for gpu, numa in enumerate(nodes):
        own = [cpu for cpu in cpus[numa] if cpu in usable]
        cores.append(own[nodes[:gpu].count(numa) * (len(own) // nodes.count(numa))])
    return cores
    ### END SOLUTION


# %% demo=true
# %%needs cpu_bind_map
from course_lib.figures.pictures import binding_picture

numa_of_gpu = (3, 3, 1, 1, 0, 0, 2, 2)
cores_of_numa = [range(first, first + 16) for first in (0, 16, 32, 48)]
binding = cpu_bind_map(lumi_node)
print("--cpu-bind=map_cpu:" + ",".join(map(str, binding)))
# A mask has a bit for each core: seven cores, from the given one on.
print("--cpu-bind=mask_cpu:" + ",".join(hex(0b1111111 << core) for core in binding))
guesses.measured(quarter_of_the_cores_beside_gpu_0=binding[0] // 16 + 1)

# %% [markdown]
# The third prediction: quarter 4, the last. GPU 0 is beside the cores 48 to 63, and a job may use them from 49 on.
# The first line printed gives each rank one core, the second all seven of its block, as a **mask**. Training needs
# them, for the threads that read data.
#
# In a mask, bit b stands for CPU b; two hexadecimal digits are eight CPUs. A lecture on LUMI writes
# `0x${fe}000000000000`, where `fe` holds the digits fe, the last seven of eight CPUs; the 12 zeros make these the
# CPUs 49 to 55. With `--exclusive` and `--gpus=8` the job has the whole node, and so all these CPUs.
#
# The lecture's slide has two misprints, which cost nothing but speed. To find such mistakes, read srun's option.
# It has an entry for each rank, the first for rank 0, in one of two forms:
#
# - `--cpu-bind=mask_cpu:MASK,MASK,...`, where masks are hexadecimal, with 0x before them or without;
# - `--cpu-bind=map_cpu:CPU,CPU,...`, where CPUs are decimal, or hexadecimal with 0x.
#
# On a node with n cores, CPU c is a thread of core c % n.


# %% exercise="misplaced_cpus" points=6
def misplaced_cpus(option: str, node: dict) -> list[list[int]]:
    """For each rank its misplaced CPUs, in ascending order.

    option: srun's, in either of the two forms above.
    node: as for cpu_bind_map; rank r uses GPU r. There may be fewer ranks than GPUs.

    A CPU of rank r is misplaced if it is not in the NUMA node of r's GPU; or if the job may not use it;
    or if another rank, whose GPU is in the same NUMA node, has a CPU of the same core.
    """
    ### BEGIN SOLUTION
    kind, _, entries = option.removeprefix("--cpu-bind=").partition(":")
    if kind == "mask_cpu":
        masks = [int(entry, 16) for entry in entries.split(",")]
        given = [[cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1] for mask in masks]
    else:
        given = [[int(entry, 0)] for entry in entries.split(",")]
    cpus, nodes = node["cpus_of_numa"], node["numa_of_gpu"]
    cores = sum(map(len, cpus)) // node["threads_per_core"]
    misplaced = []
    for rank, own in enumerate(given):
        right = set(cpus[nodes[rank]])
        if node["allowed"] is not None:
            right &= set(node["allowed"])
        others = [other for other in range(len(given)) if other != rank and nodes[other] == nodes[rank]]
        taken = {cpu % cores for other in others for cpu in given[other]}
        misplaced.append([cpu for cpu in own if cpu not in right or cpu % cores in taken])
    return misplaced
    ### END SOLUTION


# %% demo=true
# %%needs misplaced_cpus
# The lecture's masks: fe, and so many zeros behind it.
slide = [f"0xfe{'0' * zeros}" for zeros in (12, 16, 4, 6, 0, 2, 8, 12)]
found_misplaced = misplaced_cpus(f"--cpu-bind=mask_cpu:{','.join(slide)}", lumi_node)
for rank, (mask, cpus) in enumerate(zip(slide, found_misplaced, strict=True)):
    print(f"rank {rank}: {mask:>20}", f"should not have {cpus}" if cpus else "")

# %% demo=true jupyter={"source_hidden": true}
# %%holds misplaced_cpus
assert found_misplaced == [[], list(range(65, 72)), [], [], [], [], [], list(range(49, 56))]

# %% [markdown]
# Rank 1 would get second hardware threads of cores beside GPU 4, and rank 7 the cores of rank 0: both masks have two
# zeros too many. The slide also sets a variable `MASK` and uses `$MYMASKS`. So compute masks; do not type them.
#
# Move the slider: with each binding, how many ranks sit beside their GPU?

# %% demo=true
# %%needs cpu_bind_map
bindings = {
    "none: eight cores in a row": [1, 2, 3, 4, 5, 6, 7, 9],
    "one per group, in order": [1, 9, 17, 25, 33, 41, 49, 57],
    "beside the GPU": binding,
}


def bound(way: str):
    """A node of LUMI with the ranks on these cores."""
    return binding_picture(numa_of_gpu, cores_of_numa, bindings[way], f"{way}: {bindings[way]}")


explore(bound, way=Slider(list(bindings), start="beside the GPU", label="binding"))


# %% demo=true jupyter={"source_hidden": true}
# %%holds cpu_bind_map
def beside(cores: list[int]) -> int:
    """How many ranks run on the NUMA node of their GPU."""
    return sum(core in cores_of_numa[numa_of_gpu[gpu]] for gpu, core in enumerate(cores))


assert [beside(cores) for cores in bindings.values()] == [2, 2, 8]
assert binding[0] == 49

# %% [markdown]
# Two ranks without a binding, two with a rank in each group of cores, in order; all eight with your map.
#
# On LUMI, eight ranks on the cores of your map ran much faster than on the cores 1 to 8 ([POP Centre of
# Excellence](https://co-design.pop-coe.eu/experiments/gpu-affinity/lumi.html)), mostly because of the memory.
# Unbound, all copies to the GPUs go through the channels of one NUMA node; bound, through those of four. By the
# table's numbers:

# %% demo=true
channel = 3.2e9 * 8  # DDR4-3200: so many transfers a second, of 8 bytes each
to_a_die, dies = 36e9, 8
batch = 256 * 3 * 224 * 224 * 4  # 256 images in 32 bits
for name, channels in {"one NUMA node": 2, "four NUMA nodes": 8}.items():
    each = min(to_a_die, channels * channel / dies)
    print(
        f"data in {name:15} {channels * channel / 1e9:5.1f} GB/s, {each / 1e9:4.1f} GB/s per die: "
        f"{batch / each * 1e3:4.1f} ms for a batch of {batch / 1e6:.0f} MB"
    )
print(f"the link alone: {to_a_die / 1e9:.0f} GB/s per die, {batch / to_a_die * 1e3:.1f} ms")

# %% demo=true jupyter={"source_hidden": true}
assert (round(batch / 1e6), round(batch / to_a_die * 1e3, 1)) == (154, 4.3)
assert (2 * channel / dies, 8 * channel / dies) == (6.4e9, 25.6e9)
assert 2 * channel / dies < to_a_die / 5
assert 4 * 200e9 == 800e9 == 8 * 100e9

# %% [markdown]
# So eight ranks whose data all lie in one NUMA node get 6.4 GB/s each, less than a fifth of what the link to a die
# can carry; it is 25.6 GB/s if the data lie in all four.
#
# ## 8 When a worker fails
#
# A node that fails once in 264 days is a good node. With 2,048 of them one fails every three hours. In 54 days on
# 16,384 GPUs the training of Llama 3 was interrupted 466 times, 419 times unexpectedly. It still computed more than
# 90 % of the time, because it came back by itself.
#
# `torchrun` watches its workers. If one dies, it ends all others, on all nodes, lets the agents meet again, and
# starts every worker anew, at most `--max-restarts` times. One rank alone cannot be replaced: the others wait in
# collectives that it will never answer. Besides the variables of section 3 (`GROUP_RANK` is the agent's number) a
# worker finds `MASTER_ADDR`, `MASTER_PORT`, `TORCHELASTIC_RUN_ID` (the job's name, from `--rdzv-id`),
# `TORCHELASTIC_RESTART_COUNT` and `TORCHELASTIC_MAX_RESTARTS`.
#
# Here worker 1 of 2 kills itself by SIGKILL in its first run, as the kernel kills a process when memory runs out.

# %% demo=true
DYING = """
import os, signal, time
from pathlib import Path
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
os.write(1, (" ".join(f"{name}={os.environ[name]}" for name in names) + "\\n").encode())
said = Path(__file__).parent
(said / os.environ["RANK"]).touch()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "1":
        while not (said / "0").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
"""
torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=localhost"]
torchrun += ["--nproc-per-node=2", "--max-restarts=1"]
with tempfile.TemporaryDirectory() as name:
    program = Path(name) / "dying.py"
    program.write_text(DYING)
    done = subprocess.run([*torchrun, program], capture_output=True, text=True, timeout=120)
print(done.stdout)
for line in done.stderr.splitlines():
    if "closing signal" in line or "exitcode" in line:
        print(line.partition("] ")[2])
assert done.returncode == 0, done.stderr
assert sorted(done.stdout.split()[3::4]) == [f"TORCHELASTIC_RESTART_COUNT={count}" for count in "0011"]

# %% [markdown]
# Worker 0 did nothing wrong, and was ended too. So a restart is a start for everyone, with nothing left but what is
# on the disk:
#
# 1. Every start looks for a checkpoint first.
# 2. What is not in the checkpoint is lost: weights, optimizer, random state, place in the data.
# 3. Nothing may depend on a rank's number being the same as before.
#
# Unlike the older `torch.distributed.launch`, torchrun survives the loss of workers, sets these variables, and is
# **elastic**. With `--nnodes=1:2` it begins as soon as one node is there, and lets another join later. Here both
# nodes are this machine. The second joins late, and leaves again. Then the worker of the first fails, as workers do
# whose peer is gone:

# %% demo=true jupyter={"source_hidden": true}
# %%needs torch>=2.8
ELASTIC = """
import os, time
from pathlib import Path
names = ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
rank, world, count = (os.environ[name] for name in names)
os.write(1, f"rank {rank} of {world}, restart {count}\\n".encode())
said = Path(__file__).parent
(said / f"{rank} of {world}, restart {count}").touch()
while not (said / "done").exists():
    if world == "2" and (said / "left").exists():
        raise SystemExit("Connection closed by peer")
    time.sleep(0.02)
"""


def wait_for(path: Path) -> None:
    """Until the file is there, at most for two minutes."""
    deadline = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} has not come"
        time.sleep(0.02)


def elastic_job(folder: Path) -> str:
    """What the workers say of a job of one node, then two, then one."""
    (folder / "elastic.py").write_text(ELASTIC)
    meeting = dist.TCPStore("127.0.0.1", 0, is_master=True)
    agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1"]
    agent += ["--max-restarts=1", "--monitor-interval=0.1", "--rdzv-conf=last_call_timeout=1,is_host=0"]
    agent += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{meeting.port}", "--local-addr=localhost"]
    agent += [folder / "elastic.py"]
    options = {"stdout": (folder / "out").open("w"), "stderr": subprocess.DEVNULL}
    options["env"] = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    nodes = [subprocess.Popen(agent, **options)]
    try:
        wait_for(folder / "0 of 1, restart 0")
        nodes.append(subprocess.Popen(agent, **options))
        wait_for(folder / "0 of 2, restart 0")
        wait_for(folder / "1 of 2, restart 0")
        nodes[1].terminate()
        nodes[1].wait(60)
        (folder / "left").touch()
        wait_for(folder / "0 of 1, restart 1")
        (folder / "done").touch()
        assert nodes[0].wait(60) == 0
    finally:
        for node in nodes:  # An agent that is told to end ends its workers.
            node.terminate()
            node.wait(60)
        options["stdout"].close()
    return (folder / "out").read_text()


with tempfile.TemporaryDirectory() as name:
    told = elastic_job(Path(name))
print(told, end="")
assert sorted(told.splitlines()[1:3]) == ["rank 0 of 2, restart 0", "rank 1 of 2, restart 0"]

# %% [markdown]
# All workers are started anew each time, with another `WORLD_SIZE`; section 12 is about what that does to training. A
# node that joins does not count as a failure. (On several nodes PyTorch 2.13 needs
# `export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`, or restarts fail: [PyTorch
# 135712](https://github.com/pytorch/pytorch/issues/135712).)
#
# ## 9 How often to save
#
# A checkpoint takes $C$ seconds in which nothing is learnt. A failure costs the work since the last checkpoint.
#
# Let the job fail every $M$ seconds on average, and save after every $T$ seconds of work. Checkpoints take $C$
# seconds for every $T$ seconds of work. A failure strikes on average in the middle between two checkpoints, so it
# loses $T / 2$ of every $M$ seconds. The time that is lost, divided by the time of the work, is about
#
# $$ w(T) = \frac{C}{T} + \frac{T}{2M} . $$
#
# The $T$ for which it is least is Young's interval (1974). Find it. $M$ is the job's: if nodes fail independently of
# each other, $N$ nodes fail $N$ times as often as one.


# %% exercise="checkpoint_interval" points=4
def checkpoint_interval(
    checkpoint_seconds: float, mean_time_between_failures: float, nodes: int = 1
) -> float:
    """Young's interval: how many seconds to work between two checkpoints so that least time is lost.

    checkpoint_seconds: how long a checkpoint takes. mean_time_between_failures: of one node, in
        seconds. nodes: how many the job has; it stops as soon as one of them fails.
    """
    ### BEGIN SOLUTION
    return math.sqrt(2 * checkpoint_seconds * mean_time_between_failures / nodes)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Answer: where the least is</summary>
#
# At the optimum the two losses are equal. To halve their sum, checkpoints must become four times as fast.
#
# </details>
#
# Young leaves out that failures also strike during checkpoints and restarts. Daly (2006) has the expected loss with
# these: the curve in the figure. The dots are trainings whose failures were drawn. Both are in percent of the work:
# at 100 % the job takes twice as long as the work alone. Llama 3's 419 failures in 54 days on 2,048 nodes are one per
# node in 264 days. The sliders start at the fourth prediction. **Move them.** For which jobs does it hardly matter
# how often you save? What must become faster, before 16,384 nodes make sense?

# %% demo=true jupyter={"source_hidden": true}
# %%needs checkpoint_interval
from course_lib.training.failure_model import drawn_overhead, expected_overhead

DAY = 86_400
NODE = 264 * DAY


def waste(nodes: int, seconds: int):
    """What saving costs, against the interval; and the interval that costs least."""
    best = checkpoint_interval(seconds, NODE, nodes)
    failure = NODE / nodes
    intervals = [best * 2 ** (step / 4) for step in range(-8, 9)]
    curve = [100 * expected_overhead(each, seconds, failure, 60) for each in intervals]
    dots = [100 * drawn_overhead(each, seconds, failure, 60, pieces=10_000) for each in intervals[::4]]
    least = 100 * expected_overhead(best, seconds, failure, 60)
    figure, axes = new_figure(
        alt=f"Time lost, in percent of the work, against the interval for {nodes} nodes and checkpoints of {seconds} s: "
        "high on the left, where checkpoints are frequent, high on the right, where failures lose much, and least, "
        f"{least:.1f} percent, near Young's interval of {best / 60:.1f} minutes.",
        height=3.2,
    )
    axes.plot([each / 60 for each in intervals], curve, color=COLOURS["blue"], label="expected (Daly 2006)")
    axes.plot(
        [each / 60 for each in intervals[::4]],
        dots,
        "o",
        color=COLOURS["orange"],
        label="10,000 pieces, failures drawn",
    )
    axes.axvline(
        best / 60,
        color=COLOURS["vermillion"],
        linestyle="--",
        label=f"Young: {best / 60:.1f} min, {least:.1f} % of the work",
    )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="work between two checkpoints (min)",
        ylabel="time lost (% of the work)",
    )
    axes.set_ylim(bottom=0.85 * min(curve + dots))
    for ticks, digits in ((axes.xaxis, "25"), (axes.yaxis, "2345")):
        ticks.set_major_formatter("{x:g}")
        ticks.set_minor_formatter(
            lambda value, _, digits=digits: f"{value:g}" if f"{value:e}"[0] in digits else ""
        )
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    return figure


explore(
    waste,
    nodes=Slider([1, 16, 128, 1024, 2048, 16_384], start=2048, label="nodes"),
    seconds=Slider([2, 10, 30, 120, 600], start=120, label="a checkpoint takes (s)"),
)

# %% demo=true jupyter={"source_hidden": true}
# %%holds checkpoint_interval
assert round(54 * 2048 / 419) == 264
assert round(264 * 24 / 2048) == 3
at_start = checkpoint_interval(120, NODE, 2048)
guesses.measured(minutes_between_two_checkpoints=at_start / 60)
lost = expected_overhead(at_start, 120, NODE / 2048, 60)
assert (round(at_start / 60), round(100 * lost), round(100 * lost / (1 + lost))) == (27, 17, 14)
for factor in (0.5, 2):
    assert 1.15 < expected_overhead(factor * at_start, 120, NODE / 2048, 60) / lost < 1.35
alone = checkpoint_interval(120, NODE, 1)
assert [round(100 * expected_overhead(part * alone, 120, NODE, 60), 1) for part in (1, 0.25, 4)] == [
    0.3,
    0.7,
    0.7,
]
at_most = expected_overhead(checkpoint_interval(2, NODE, 2048), 2, NODE / 2048, 60)
assert at_most < 0.03
assert expected_overhead(checkpoint_interval(120, NODE, 16_384), 120, NODE / 16_384, 60) > 0.5

# %% [markdown]
# On one node it hardly matters: with the best interval the time lost is 0.3 % of the work, with a quarter of it or
# four times as much 0.7 %. On many nodes the minimum is flat too: half or twice the best interval costs about a
# quarter more. So an estimate of $M$ will do. But 2,048 nodes that save every 27 minutes lose time equal to 17 % of
# the work: 14 % of the whole time. On 16,384 nodes it is more than half of the work. With checkpoints of two seconds
# (section 13), 2,048 nodes lose less than 3 %.
#
# ## 10 A checkpoint that is whole or not there
#
# A failure often strikes while a checkpoint is written: the disk is full, or the time limit is reached *because*
# saving takes so long. `torch.save(state, path)` begins by emptying the file of that name. Until it ends there is no
# checkpoint at all.
#
# One step of the file system happens wholly or not at all: `os.replace(source, target)` renames a file, and replaces
# `target` if it exists. (Both must be on one file system.) With it a save can be made safe against a killed process.
# A power failure, or a node that crashes, is harder, since what you write goes through three places:
#
# | Place | Lost with | Emptied by |
# |---|---|---|
# | Python's buffer | the process | `file.flush()`, which `torch.save` calls itself |
# | the operating system's memory | the node | `os.fsync(file.fileno())` |
# | the disk | (keep copies elsewhere) | |
#
# The operating system may write to the disk in another order than you did. Names are written in their folder;
# `os.open(folder, os.O_RDONLY)` opens it for `os.fsync`. What is found after a power failure, if the disk learns of
# the new name first?


# %% exercise="save_checkpoint" points=10
def save_checkpoint(path: Path, state: dict) -> None:
    """Save state so that path always holds a whole checkpoint, the old one or the new one, whenever the
    process is killed.

    path: in a folder that exists. A file there is replaced, and torch.load(path) then returns state.

    Write to a file in the same folder whose name ends in ".tmp". All bytes are on the disk before the
    file gets the name path, and the name is on the disk when the function returns. If writing raises,
    let the error through, and leave no temporary file.
    """
    ### BEGIN SOLUTION
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    ### END SOLUTION


# %% [markdown]
# The grader kills real processes in the middle of real writes. Here is what a kill would leave, at each moment at
# which the folder changes, for four ways to save over an older checkpoint.

# %% demo=true jupyter={"source_hidden": true}
from course_lib.figures.pictures import moments_picture
from graders.units.unit_03.fault_injection import run_forked, watched


def straight(path: Path, state: dict) -> None:
    """What everybody does first."""
    torch.save(state, path)


def remove_first(path: Path, state: dict) -> None:
    """Another file, but the old one is removed before the new one takes its name."""
    torch.save(state, f"{path}.tmp")
    path.unlink()
    os.rename(f"{path}.tmp", path)


def copy(path: Path, state: dict) -> None:
    """Another file, which is copied."""
    torch.save(state, f"{path}.tmp")
    shutil.copy(f"{path}.tmp", path)
    os.unlink(f"{path}.tmp")


def moments(save) -> list[str]:
    """What is under the checkpoint's name, at each change of its folder, while a process saves."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "step-1.pt"
        torch.save({"weights": torch.zeros(5000)}, path)
        record = run_forked(watched(Path(name), lambda: save(path, {"weights": torch.ones(5000)})))["value"]
    files = [event["files"].get(path.name) for event in record if "files" in event]
    contents = [file and file["content"] for file in files]
    words = {None: "none", contents[0]: "old", contents[-1]: "new"}
    return [words.get(content, "torn") for content in contents]


# %% demo=true
# %%needs save_checkpoint
ways = {
    "straight to its name": straight,
    "remove, then rename": remove_first,
    "copy over it": copy,
    "yours": save_checkpoint,
}
seen = {name: moments(save) for name, save in ways.items()}
moments_picture(seen)

# %% demo=true jupyter={"source_hidden": true}
# %%holds save_checkpoint
assert "torn" in seen["straight to its name"]
assert "none" in seen["remove, then rename"]
assert "torn" in seen["copy over it"]
assert set(seen["yours"]) == {"old", "new"}

# %% [markdown]
# <details><summary>Answer: what is found after a power failure</summary>
#
# After a power failure, a name that reached the disk before the bytes leads to an empty or half-written file. So
# fsync of the file comes before the rename.
#
# </details>
#
# However you save, some checkpoint will be damaged one day, by a disk or an interrupted copy. So a loader must check.
# `torch.load` does not:

# %% demo=true
with tempfile.TemporaryDirectory() as name:
    path = Path(name) / "step-1.pt"
    torch.save({"weights": torch.ones(5000)}, path)
    content = bytearray(path.read_bytes())
    content[8192:12288] = bytes(4096)  # a block that never reached the disk
    path.write_bytes(content)
    zeros = int((torch.load(path)["weights"] == 0).sum())
    print(f"torch.load: no complaint, and {zeros:,} of 5,000 ones are zeros")
    print(f"the file begins with {bytes(content[:2])}")
assert zeros > 0
assert zipfile.is_zipfile(io.BytesIO(content))

# %% [markdown]
# A file of `torch.save` is a zip archive, as its first two bytes say, with a checksum of each part. `torch.load` does
# not look at it; the standard library's module for zip archives can.


# %% exercise="load_latest" points=9
def load_latest(directory: Path) -> dict | None:
    """The newest checkpoint in directory that is whole; None if there is none, or no such directory.

    directory: holds files step-N.pt, which torch.save has written after N steps, N in digits. The
        newest has the largest N. Ignore other names, and subfolders.

    Skip a file that is cut off, empty, no checkpoint at all, or damaged inside, and name it in a
    warning (warnings.warn); the next older one counts. Change and remove no file.
    """
    ### BEGIN SOLUTION
    steps = {}
    for path in directory.glob("step-*.pt"):
        if found := re.fullmatch(r"step-([0-9]+)\.pt", path.name):
            steps[path] = int(found[1])
    for path in sorted(steps, key=steps.get, reverse=True):
        try:
            damaged = zipfile.ZipFile(path).testzip()
            if damaged is None:
                return torch.load(path)
            warnings.warn(f"{path.name} is skipped: {damaged} in it is damaged", stacklevel=2)
        except Exception as error:
            warnings.warn(f"{path.name} is skipped: {error}", stacklevel=2)
    return None
    ### END SOLUTION


# %% [markdown]
# ## 11 Going on as if nothing had happened
#
# A resumed training that "looks about right" may be wrong. The strict test is equality: killed anywhere and started
# again, it ends with the same weights, bit for bit. Everything that a step depends on has to be in the checkpoint, or
# follow from what is there.
#
# What you see after a restart tells what was forgotten. Name for each what is missing in the checkpoint:
#
# 1. The loss jumps up, and takes hundreds of steps to come back.
# 2. The learning rate's schedule begins anew, and the training does not know when it ends.
# 3. Some samples of this epoch come twice, others never.
# 4. Nothing strange is seen, but the weights at the end are not those of a training without a kill.
#
# Not all of it need be saved. `DistributedSampler` saves no order of the samples, and has the right one after every
# restart: think why. A step may draw random numbers, as dropout does, from torch's global generator, which starts in
# the same state in every process. On GPUs equality also takes `torch.use_deterministic_algorithms(True)`.
#
# Your loop is given a `Training` (of `course_lib.training.checkpoints`): a `model` and an `optimizer`, which have
# `state_dict` and `load_state_dict`; `samples`, a tensor `[N, ...]`; `batch_size` and `epochs`. A step is
# `training.train_step(training.samples[indices])`. An epoch has every sample once, in batches of `batch_size` of which
# the last may be smaller, in an order that is drawn anew for each epoch.


# %% exercise="resume" points=12
def resume(training: Training, directory: Path, save_every: int, save, load_latest) -> None:
    """Train to the end, from the newest checkpoint in directory if there is one. However often it is
    killed and called again, the final weights are, bit for bit, those of an uninterrupted run.

    training: as described above.
    save(path, state), load_latest(directory): the two functions above.

    Saves directory / f"step-{N}.pt" when N steps are done, for every N that save_every divides, and
    after the last step. If the training has ended already, makes no step.
    """
    ### BEGIN SOLUTION
    samples, batch_size = len(training.samples), training.batch_size
    an_epoch = math.ceil(samples / batch_size)
    last = training.epochs * an_epoch
    step = 0
    if (state := load_latest(directory)) is not None:
        step = state["step"]
        training.model.load_state_dict(state["model"])
        training.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
    while step < last:
        epoch, position = divmod(step, an_epoch)
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(epoch))
        training.train_step(training.samples[order[position * batch_size :][:batch_size]])
        step += 1
        if step % save_every == 0 or step == last:
            state = {
                "step": step,
                "model": training.model.state_dict(),
                "optimizer": training.optimizer.state_dict(),
                "random": torch.get_rng_state(),
            }
            save(directory / f"step-{step}.pt", state)
    ### END SOLUTION


# %% [markdown]
# What was forgotten, in the order of the questions above:
#
# <details><summary>Answers</summary>
#
# 1. The optimizer's state: momentum, Adam's moments.
# 2. How many steps are done.
# 3. The place in the data.
# 4. The random state, from which dropout and augmentation draw: `torch.get_rng_state()`, and those of CUDA, NumPy and
#    `random` where they are used.
#
# An order follows from the epoch's number, if that seeds a generator of its own.
#
# </details>
#
# A classifier with dropout and momentum saves after every ten steps. Its process is killed by SIGKILL three times,
# after a number of steps that is drawn. In the figure a ring is the first step of a process, a cross its last.

# %% demo=true jupyter={"source_hidden": true}
from course_lib.training.data_parallel import fingerprint

data = load("digits")
table = torch.cat([data.train.images.flatten(1), data.train.labels[:, None]], 1)


def run_script(directory: Path, steps: int | None = None) -> str:
    """What a training script does when it is started: it is killed after so many steps, or comes to the end."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []

    def train_step(batch):
        loss = functional.cross_entropy(model(batch[:, :64]), batch[:, 64].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        with (directory / "losses").open("a") as file:
            print(len(losses), loss.item(), file=file)
        if len(losses) == steps:
            os.kill(os.getpid(), signal.SIGKILL)

    resume(Training(model, optimizer, table, 64, 2, train_step), directory, 10, save_checkpoint, load_latest)
    return fingerprint(model)


def run_until_done(*kills: int) -> tuple[str, list[list[float]]]:
    """The final weights' fingerprint, and the losses of each process, the last of which comes to the end."""
    directory = Path(tempfile.mkdtemp())
    for steps in kills:
        try:
            launch(run_script, directory, steps, ranks=1, on="processes", quiet=True)
        except RankFailed as error:
            if "SIGKILL" not in error.args[0]:
                raise
            print(f"killed after {steps} steps, as intended")
    weights = launch(run_script, directory, ranks=1, on="processes", quiet=True).results[0]
    told = []
    for line in (directory / "losses").read_text().splitlines():
        number, loss = line.split()
        if number == "1":
            told.append([])
        told[-1].append(float(loss))
    shutil.rmtree(directory)
    return weights, told


# %% demo=true
# %%needs save_checkpoint load_latest resume
whole, (curve,) = run_until_done()
kills = [random.randint(16, 19) for _ in range(3)]
killed, parts = run_until_done(*kills)
print(f"uninterrupted: weights {whole[:16]}\nkilled 3 times: weights {killed[:16]}")
assert whole == killed

# %% demo=true jupyter={"source_hidden": true}
# %%holds save_checkpoint load_latest resume
begins = [10 * start for start in range(4)]  # Each process saves once, ten steps after its first.
assert [len(part) for part in parts] == [*kills, len(curve) - begins[-1]]
assert all(part == curve[begin : begin + len(part)] for begin, part in zip(begins, parts, strict=True))

# %% demo=true jupyter={"source_hidden": true}
# %%needs save_checkpoint load_latest resume
figure, axes = new_figure(
    alt="Training loss against steps: a grey line for the uninterrupted training, and on it the pieces of four processes; each "
    "piece begins at a ring, after a multiple of ten steps, and makes the last six to nine steps of the piece before, up to its "
    "cross, once more.",
    height=3.2,
)
axes.plot(range(1, len(curve) + 1), curve, color="#888888", linewidth=5, alpha=0.5, label="uninterrupted")
for number, (begin, part, colour) in enumerate(
    zip(begins, parts, ("blue", "vermillion", "bluish_green", "black"), strict=True)
):
    steps = range(begin + 1, begin + len(part) + 1)
    axes.plot(
        steps,
        part,
        color=COLOURS[colour],
        linestyle=("-", "--", "-.", ":")[number],
        label=f"process {number + 1}",
    )
    if number:
        axes.plot(steps[0], part[0], "o", color=COLOURS[colour], markersize=9, fillstyle="none")
    if number < len(kills):
        axes.plot(steps[-1], part[-1], "x", color=COLOURS[colour], markersize=10, markeredgewidth=2)
axes.set(xlabel="step", ylabel="training loss")
axes.legend(frameon=False)
figure

# %% [markdown]
# ### Told to stop
#
# When a job's time is up, Slurm sends its processes SIGTERM and, 30 seconds later unless the site says otherwise,
# SIGKILL. That may be too short for a checkpoint. `#SBATCH --signal=USR1@120` asks for a warning: SIGUSR1 to the
# tasks of the job's steps two minutes before the end, or up to a minute earlier still.
#
# `signal.signal(number, handler)` makes Python call `handler(number, frame)` between two instructions of whatever it
# is running. Among ranks that is not enough. The signal may reach all ranks or only one, at any moments, perhaps in
# different steps, and repeatedly. A rank that stops by itself leaves the others waiting. And there may be hundreds of
# ranks.
#
# A handler may run in the middle of anything, so let it only set a variable of your function (`nonlocal`). A global
# one would be shared by all simulated ranks.


# %% exercise="save_on_signal" points=10
def save_on_signal(train_step, steps: int, save, set_handler) -> int:
    """Train until the end, or until SIGTERM or SIGUSR1 comes to any rank; all stop after the same step.

    train_step(step): this rank's part of step 0, 1, ...; it contains a collective.
    save(done): writes a checkpoint after so many steps. One rank calls it, at the end.
    set_handler(number, handler): use it in place of signal.signal.
    Returns the number of steps made.

    A signal during step k, or just before it, stops all ranks after step k or k + 1. Besides
    train_step's own, make one collective per step, of one number, and at most one at the end.
    """
    ### BEGIN SOLUTION
    asked = False

    def note(number, frame):
        nonlocal asked
        asked = True

    for number in (signal.SIGTERM, signal.SIGUSR1):
        set_handler(number, note)
    done, stop = 0, False
    while done < steps and not stop:
        train_step(done)
        done += 1
        # What comes after this line counts in the next step: on this rank, too, the sum decides.
        told = torch.tensor(float(asked))
        dist.all_reduce(told)
        stop = told.item() > 0
    if dist.get_rank() == 0:
        save(done)
    return done
    ### END SOLUTION


# %% [markdown]
# <details><summary>Answer: how many ranks may be told</summary>
#
# If 256 ranks each note a 1 and the notes are added up as `uint8`, the sum does not fit into one byte: it is 0. So it
# is with `bool`, which Gloo adds up as bytes. The maximum, by `MAX`, cannot overflow.
#
# </details>
#
# On processes `set_handler` is `signal.signal`. One rank gets a signal in its sixth step:

# %% demo=true
# %%needs save_on_signal


def told_from_outside() -> tuple[int, list[int]]:
    """Train on this rank, the last of which is told to stop; returns its steps, and its checkpoints."""
    saved = []

    def train_step(step: int) -> None:
        if step == 5 and dist.get_rank() == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        dist.all_reduce(torch.ones(1000))

    return save_on_signal(train_step, 100, saved.append, signal.signal), saved


stopped = launch(told_from_outside, ranks=max(2, ranks), on="processes", quiet=True).results
for rank, (done, saved) in enumerate(stopped):
    print(f"rank {rank} stopped after {done} of 100 steps, and saved {saved}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds save_on_signal
assert {done for done, _ in stopped} <= {6, 7}
assert len({done for done, _ in stopped}) == 1
assert sum(len(saved) for _, saved in stopped) == 1
assert torch.ones(256, dtype=torch.uint8).sum(dtype=torch.uint8) == 0


def byte_of_a_sum() -> int:
    """What stands in memory when each rank has noted True, and the notes were added up."""
    told = torch.tensor(True)
    dist.all_reduce(told)
    return told.view(torch.uint8).item()


assert launch(byte_of_a_sum, ranks=2, on="processes", quiet=True).results == [2, 2]

# %% [markdown]
# ## 12 Fewer workers, more workers
#
# A node is lost and will not come back today. Going on with three of four changes `WORLD_SIZE`. If every rank keeps
# its batch, the global batch shrinks by a quarter, and the learning rate no longer fits. So keep the **global
# batch**, and deal it out to those who are there.
#
# How are 48 samples dealt to five ranks? And how must the ranks' losses be weighted? Each rank computes the mean loss
# of its own samples, and an all-reduce averages over ranks, as if all had equally many. Find the factor by which a
# rank multiplies its loss before backward, so that this average is the gradient of the global batch's mean loss. No
# rank may ask another.


# %% exercise="elastic_batch" points=6
def elastic_batch(global_batch: int, world_size: int, rank: int) -> tuple[range, float]:
    """The part of the global batch that this rank works on, and the weight of its mean loss.

    Returns (positions, weight).
    positions: a range within 0 .. global_batch - 1. Over all ranks every position comes once, and sizes
        differ by one at most, also where there are more ranks than samples.
    weight: the factor for this rank's mean loss, as described above; 0.0 for a rank without samples.
    """
    ### BEGIN SOLUTION
    begin = rank * global_batch // world_size
    end = (rank + 1) * global_batch // world_size
    return range(begin, end), (end - begin) * world_size / global_batch
    ### END SOLUTION


# %% [markdown]
# Sixty steps, in which the world goes from 4 ranks to 3, 5 and 2. Beside it, one rank that does all the work, and a
# world where every rank keeps the 12 samples that it had among four.

# %% demo=true jupyter={"source_hidden": true}
GLOBAL_BATCH = 48
data = load("digits")
inputs, labels = data.train.images.flatten(1), data.train.labels


def keep_own_batch(global_batch: int, world_size: int, rank: int) -> tuple[range, float]:
    """12 samples per rank, however many ranks there are."""
    return range(12 * rank, 12 * (rank + 1)), 1.0


def some_steps(model: nn.Module, first: int, last: int, deal) -> tuple[nn.Module, list[float]]:
    """Steps first .. last - 1 of gradient descent on all ranks; returns the model and the global losses."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    losses = []
    for step in range(first, last):
        batch = torch.randperm(len(labels), generator=torch.Generator().manual_seed(step))
        positions, weight = deal(GLOBAL_BATCH, ranks, rank)
        mine = batch[list(positions)]
        loss = weight * functional.cross_entropy(model(inputs[mine]), labels[mine])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        flat = torch.cat([loss.detach()[None], *(gradient.flatten() for gradient in gradients)]) / ranks
        dist.all_reduce(flat)
        losses.append(flat[0].item())
        start = 1
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.3 * flat[start : start + parameter.numel()].view_as(parameter)
                start += parameter.numel()
    return model, losses


def through_worlds(worlds: list[int], deal) -> list[float]:
    """The losses of 60 steps, dealt out evenly to these world sizes, one after the other."""
    torch.manual_seed(0)
    model, losses, length = nn.Linear(64, 10), [], 60 // len(worlds)
    for place, size in enumerate(worlds):
        run = launch(
            some_steps, model, place * length, (place + 1) * length, deal, ranks=size, on=on, quiet=True
        )
        model, more = run.results[0]
        losses += more
    return losses


# %% demo=true
# %%needs elastic_batch
one = through_worlds([1], elastic_batch)
elastic = through_worlds([4, 3, 5, 2], elastic_batch)
naive = through_worlds([4, 3, 5, 2], keep_own_batch)
for name, losses in {"one rank": one, "global batch kept": elastic, "rank's batch kept": naive}.items():
    print(f"{name:17} last loss {losses[-1]:.6f}")

# %% demo=true jupyter={"source_hidden": true}
# %%needs elastic_batch
steps = list(range(1, 61))
figure, (left, right) = new_figure(
    columns=2,
    alt="Left: training loss of one rank, and of worlds of 4, 3, 5 and 2 ranks, on one line. Right: the differences from one "
    "rank's loss; with the global batch kept they are as small as rounding, with the rank's batch kept up to a hundred "
    "thousand times larger once the world has changed.",
)
draw_lines(left, {"1 rank": (steps, one), "4, 3, 5, 2 ranks": (steps, elastic)}, x="step", y="training loss")
left.legend(frameon=False)
for name, losses, colour, style in [
    ("global batch kept", elastic, "blue", "-"),
    ("rank's batch kept", naive, "vermillion", "--"),
]:
    difference = [max(abs(a - b), 1e-9) for a, b in zip(losses, one)]
    right.semilogy(steps, difference, style, color=COLOURS[colour], label=name)
right.set(xlabel="step", ylabel="difference from 1 rank (0 as 1e-9)")
right.legend(frameon=False)
figure

# %% demo=true jupyter={"source_hidden": true}
# %%holds elastic_batch
apart = [[abs(a - b) for a, b in zip(losses, one, strict=True)] for losses in (elastic, naive)]
assert max(apart[0]) < 1e-5
assert max(apart[1][:15]) < 1e-5
assert max(apart[1][15:]) > 1e-2

# %% [markdown]
# The first fifteen steps of the dashed line are right, since four ranks with 12 samples each *are* the global batch.
#
# ## 13 Checkpoints in parts
#
# So far rank 0 writes everything. Take a model of 70 billion parameters that Adam trains in mixed precision. A parameter
# takes 16 bytes: 4 for weight and gradient in 16 bits, and 12 for three numbers in 32 bits, the exact weight and Adam's
# two averages. These are 1.1 TB, more than one rank can hold. A checkpoint needs the 12 only: 0.84 TB. One disk at
# 2 GB/s needs seven minutes to write that.
#
# So each rank holds a part of every tensor, in PyTorch as a `DTensor`, a distributed tensor (unit 09).
# `torch.distributed.checkpoint` saves them: all ranks write their parts at the same time, into one folder. Rank 0
# writes `.metadata` last, which says where each part stands; a folder without it is a save that did not end. A rank
# loads only the parts that it wants, so the number of ranks may change. Here all ranks save a tensor and the number
# of the step, and one rank fewer loads them:


# %% demo=true
def in_parts(tensor: torch.Tensor):
    """The tensor, dealt out by rows to all ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    return distribute_tensor(tensor, init_device_mesh("cpu", (dist.get_world_size(),)), [Shard(0)])


def save_in_parts(directory: Path) -> None:
    """Every rank writes its rows."""
    import torch.distributed.checkpoint as dcp

    dcp.save({"weight": in_parts(torch.arange(2400.0).view(240, 10)), "step": 7}, checkpoint_id=directory)


def load_in_parts(directory: Path) -> tuple[int, int, float]:
    """Every rank reads the rows that it needs: the step, how many rows, and the first number of them."""
    import torch.distributed.checkpoint as dcp

    state = {"weight": in_parts(torch.zeros(240, 10)), "step": 0}
    dcp.load(state, checkpoint_id=directory)
    rows = state["weight"].to_local()
    return state["step"], len(rows), rows[0, 0].item()


fewer = max(1, ranks - 1)
with tempfile.TemporaryDirectory() as name:
    launch(save_in_parts, Path(name), ranks=ranks, on="processes", quiet=True)
    sizes = {file.name: file.stat().st_size for file in sorted(Path(name).iterdir())}
    for file, size in sizes.items():
        print(f"{size:6} bytes  {file}")
    loaded = launch(load_in_parts, Path(name), ranks=fewer, on="processes", quiet=True).results
    for rank, (step, rows, first) in enumerate(loaded):
        print(f"rank {rank} of {fewer}: step {step}, {rows} rows from the number {first:g} on")

# %% demo=true jupyter={"source_hidden": true}

assert set(sizes) == {".metadata", *(f"__{rank}_0.distcp" for rank in range(ranks))}
written = sorted(size for file, size in sizes.items() if file != ".metadata")
if 240 % ranks == 0 and ranks > 1:
    assert written[0] == written[-2] < written[-1] - 500
begin = 0
for step, rows, first in loaded:
    assert (step, first) == (7, 10.0 * begin)
    begin += rows
assert begin == 240
assert round(70e9 * 16 / 1e12, 1) == 1.1
assert round(70e9 * 12 / 1e12, 2) == 0.84
assert round(70e9 * 12 / 2e9 / 60) == 7

# %% [markdown]
# Nor need you wait for a checkpoint. Copy the state, which takes milliseconds, and let a thread write the copy while
# training goes on. `torch.distributed.checkpoint.async_save` does that. Here is the idea in a few lines; each write
# takes a fifth of a second longer, as on a busy file system:

# %% demo=true jupyter={"source_hidden": true}
weights = torch.randn(2_000_000)


def slowly(path: Path, state: dict) -> None:
    """Save to a busy file system."""
    time.sleep(0.2)
    save_checkpoint(path, state)


def seconds_of_stops(save) -> list[float]:
    """For how long training stood still, at each of three checkpoints with half a second of work between them."""
    stops, writing = [], None
    with tempfile.TemporaryDirectory() as name:
        for number in range(3):
            time.sleep(0.5)  # The work: on a GPU, where it does not keep the processor busy.
            start = time.perf_counter()
            if writing:
                writing.join()
            writing = save(Path(name) / f"step-{number}.pt", {"weights": weights})
            stops.append(time.perf_counter() - start)
        if writing:
            writing.join()
    return sorted(stops)


# %% demo=true
# %%needs save_checkpoint
def in_the_background(path: Path, state: dict) -> threading.Thread:
    """Copy the state now, write the copy meanwhile; the thread's end is the checkpoint's."""
    copied = {name: value.clone() for name, value in state.items()}
    writing = threading.Thread(target=slowly, args=(path, copied))
    writing.start()
    return writing


stops = {}
for name, save in [("waiting for it", slowly), ("in the background", in_the_background)]:
    stops[name] = seconds_of_stops(save)[1]
    print(f"a checkpoint of 8 MB, {name}: training stands still for {stops[name] * 1e3:.0f} ms")

# %% demo=true jupyter={"source_hidden": true}
# %%holds save_checkpoint
assert stops["waiting for it"] > 0.2
assert stops["in the background"] < stops["waiting for it"]

# %% [markdown]
# Then $C$ of section 9 is the time of the copy, as long as a write ends before the next one begins.
#
# ## 14 The slowest worker
#
# A synchronous step ends when the last rank has come. If one GPU is too hot, all others wait for this **straggler**.
# On the simulated cluster, with the last rank at half the speed:

# %% demo=true
machine = Cluster(devices_per_node=ranks, flops=1e12)
square, last = torch.empty(4096, 4096, device="meta"), ranks - 1


def two_steps() -> None:
    """Compute, then sum over all ranks; twice."""
    for _ in range(2):
        square @ square
        dist.all_reduce(torch.empty(1000, device="meta"))


healthy = launch(two_steps, cluster=machine)
slow = launch(two_steps, cluster=machine.with_straggler(last, slowdown=2))
print(f"two steps: {healthy.seconds * 1e3:.0f} ms, with the straggler {slow.seconds * 1e3:.0f} ms")
slow.timeline(title=f"rank {last} computes half as fast")

# %% demo=true
thousand = Cluster(nodes=125, devices_per_node=8, flops=1e12)
among_many = [
    launch(two_steps, cluster=each).seconds for each in (thousand, thousand.with_straggler(7, slowdown=2))
]
print(f"1,000 ranks: {among_many[0] * 1e3:.0f} ms, with one straggler {among_many[1] * 1e3:.0f} ms")

# %% demo=true jupyter={"source_hidden": true}

delay = 2 * 2 * 4096**3 / 1e12  # Two products of 2 x 4096**3 operations, made once more at full speed.
assert math.isclose(slow.seconds - healthy.seconds, delay, rel_tol=0.01)
assert math.isclose(among_many[1] - among_many[0], delay, rel_tol=0.01)
assert round(among_many[1] / among_many[0], 1) == 1.9
assert (round(1e3 * among_many[0]), round(1e3 * (among_many[0] - delay))) == (315, 40)
waiting = [
    sum(e.end - e.start for e in slow.events if e.rank == rank and e.op == "all_reduce")
    for rank in range(ranks)
]
assert min(waiting) == waiting[last]
guesses.measured(times_as_long_a_step_with_one_slow_gpu=among_many[1] / among_many[0])

# %% [markdown]
# The fifth prediction: one rank at half the speed makes all compute at half the speed. The steps of the thousand take
# 1.9 times as long, not twice: of their 315 ms the 40 of the all-reduces stay as they are. The delay is the same
# among a few ranks and among a thousand.
#
# All ranks have the same slow step, so a rank's step time does not tell who is slow. The time that it *waits* in the
# collective does: in the timeline it is least on the straggler.
#
# Step times also vary by chance. A step takes the largest of $p$ times, and the largest of many is far from the mean:

# %% demo=true
sizes = [2**power for power in range(1, 13)]
draws = {
    spread: torch.randn(200, 4096, generator=torch.Generator().manual_seed(0))
    .mul(spread / 100)
    .add(1)
    .clamp(min=0.5)
    for spread in (1, 5, 10)
}
left_over = {
    spread: [100 / drawn[:, :size].amax(1).mean().item() for size in sizes] for spread, drawn in draws.items()
}
line_figure(
    {f"spread of {spread} %": (sizes, speeds) for spread, speeds in left_over.items()},
    x="ranks",
    y="speed (% of one rank alone)",
    log_x=True,
    at_points=True,
    alt="Speed of a synchronous step against the number of ranks, for step times that vary by 1, 5 and 10 percent: on 4,096 "
    "ranks about 96, 85 and 73 percent are left.",
)

# %% demo=true jupyter={"source_hidden": true}

assert [round(speeds[-1]) for speeds in left_over.values()] == [96, 85, 73]

# %% [markdown]
# What helps: leave the slow node out (`--exclude` at sites that allow it); do not let single ranks evaluate, log or
# save while the others wait; give slow ranks less, by weights as in section 12; give up waiting, with asynchronous
# methods (unit 08).
#
# ## 15 Now on real processes
#
# Everything together: `DistributedDataParallel` on real processes, with your functions in the training loop that the
# batch scripts run on nodes too. Rank 1 is killed after a random step, and the launch is made again.

# %% demo=true jupyter={"source_hidden": true}
from course_lib.training.checkpoints import SavedByFunctions
from course_lib.training.elastic import train
from course_lib.training.recipe import Recipe

recipe = Recipe(epochs=1, batch_size=128)


def one_start(directory: Path, kill: int | None) -> None:
    """Train on this rank; rank 1 dies after step `kill`."""

    def after_step(step: int) -> None:
        if step == kill and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    train(
        recipe,
        directory,
        SavedByFunctions(directory / "checkpoints", save_checkpoint, load_latest, every=4),
        after_step,
    )


def final_weights(*kills: int) -> str:
    """The fingerprint of the final weights."""
    with tempfile.TemporaryDirectory() as name:
        for kill in (*kills, None):
            try:
                launch(one_start, Path(name), kill, ranks=max(2, ranks), on="processes")
                assert kill is None, f"nobody was killed after step {kill}"
            except RankFailed as error:
                if "SIGKILL" not in error.args[0]:
                    raise
                print(f"killed after step {kill}, as intended")
        return json.loads((Path(name) / "finished").read_text())["weights"]


# %% demo=true
# %%needs save_checkpoint load_latest
uninterrupted = final_weights()
survived = final_weights(random.randint(5, 11))
assert survived == uninterrupted
print(f"The same weights in every bit: {survived[:16]}")

# %% [markdown]
# With several ranks nothing more has to be saved, but their number has to stay the same: with another number, sums
# are taken in another order, and weights agree to rounding only.
#
# The same failure on nodes. `course slurm render train_torchrun` writes a script in which one `torchrun` per node
# starts the ranks, again after a failure. Before the time limit Slurm sends a signal, training saves its state, and
# the job goes back into the queue. Here it runs on a virtual cluster, if Slurm is installed. Rank 1 is killed, and
# the job ends well:

# %% demo=true jupyter={"source_hidden": true}
from course_lib.slurm.scripts import Job, render

MORTAL = """
import os, signal, sys
from pathlib import Path
from course_lib.runtime.processes.rank_environment import join_group
from course_lib.training.elastic import leave_group, train
from course_lib.training.recipe import Recipe
from course_lib.training.torch_checkpoints import SavedByTorch

run = Path(os.environ["run"])
seat = join_group()

def after_step(step):
    if step == 6 and seat.rank == 1 and not (run / "died").exists():
        (run / "died").touch()
        print("rank 1 is killed after step 6", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

train(Recipe(epochs=1, batch_size=128), run, SavedByTorch(run / "checkpoints", every=4), after_step)
leave_group()
os._exit(0)
"""
SAYS = ("killed", "going on", "finished")
try:
    with temporary_cluster(Shape(nodes=2)) as cluster:
        program, script = cluster.shared / "mortal.py", cluster.shared / "mortal.sbatch"
        program.write_text(MORTAL)
        parts = Job(
            "train_torchrun",
            nodes=2,
            tasks_per_node=1,
            minutes=5,
            run=f"{cluster.shared}/run",
            program=str(program),
        )
        script.write_text(render(parts, site_named("local")))
        words = ["sbatch", "--wait", f"--output={cluster.shared}/out", script]
        ended = cluster.run(words, capture_output=True, timeout=240)
        said = (cluster.shared / "out").read_text()
        print(*(line for line in said.splitlines() if any(word in line for word in SAYS)), sep="\n")
        print(f"sbatch --wait ended with status {ended.returncode}")
        assert ended.returncode == 0, said
        assert all(word in said for word in SAYS), said
except ClusterFailed as missing:
    print(missing)

# %% [markdown]
# ## 16 Now on nodes
#
# In an allocation, `launch(..., on="slurm")` puts one rank on each task of all its nodes: sections 2 to 5 behind one
# word. If this notebook runs in an allocation, the next cell uses it; otherwise it asks a virtual cluster for one, if
# Slurm is installed.

# %% demo=true
on_nodes = """
import socket
import torch
import torch.distributed as dist
from course_lib import launch

def total() -> str:
    mine = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(mine)
    return f"{socket.gethostname()}, local rank {dist.get_node_local_rank()}: the sum is {mine.item():g}"

for rank, said in enumerate(launch(total, on="slurm", timeout=240).results):
    print(f"rank {rank} on {said}")
"""

# %% demo=true jupyter={"source_hidden": true}
from course_lib.slurm.allocation import NoAllocation, present_allocation

try:
    held = present_allocation()
    print(f"in job {held.job}, on {len(held.hosts)} nodes:")
    done = subprocess.run([sys.executable, "-c", on_nodes], capture_output=True, text=True, check=False)
except NoAllocation as why:
    print(f"Here {why}; so on a virtual cluster:")
    try:
        with temporary_cluster(Shape(nodes=2)) as cluster:
            job = cluster.shared / "on_nodes.py"
            job.write_text(on_nodes)
            words = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2", sys.executable, job]
            done = cluster.run(words, capture_output=True, timeout=300)
    except ClusterFailed as missing:
        done = subprocess.CompletedProcess([], 0, f"{missing}\n")
print(done.stdout, end="")
assert done.returncode == 0, done.stderr

# %% [markdown]
# On a real cluster, write `batch_script(2, 4, "python train.py")` to a file and `sbatch` it.
# `course slurm render train_srun` writes a script for your site. Python and the files must have the same path on all
# nodes.

# %% [markdown]
# ## 17 What goes wrong
#
# | What you see | What happened | What to do |
# |---|---|---|
# | The ranks of the second node wait until the time-out | `MASTER_ADDR=localhost` | The first host of the list |
# | "Address already in use" | Two jobs with one `MASTER_PORT` | A port made of the job's number |
# | All ranks say that they are rank 0 of 1 | No launcher, or another launcher's variables are read | `srun python train.py`; section 3 |
# | Every rank computes on GPU 0 | The local rank is not used | `torch.cuda.set_device(local_rank)` |
# | The job waits for ever: `PartitionNodeLimit`, `QOSMaxNodePerUserLimit` | More nodes or time than the queue allows | Ask for less, or another queue |
# | One GPU of four works | One task per node, and no torchrun | `--ntasks-per-node` |
# | Slow, and one core at 100 % | All ranks share one core | Masks, `--cpus-per-task`; look with `taskset -cp $$` |
# | The job is "completed", but nothing was trained | The script's last command was not the training | `set -e`, or the training last |
# | `unexpected pos 64 vs 0` from `torch.save` | The disk is full, or your quota is | Keep the last two or three checkpoints |
# | Rank 0 alone saves, and the others run into a time-out | They wait in the next collective | Save in parts, in the background, or raise the time-out |

# %% [markdown]
# ## 18 Where it comes from
#
# <details><summary>More: the papers</summary>
#
# - A. B. Yoo, M. A. Jette, M. Grondona, *SLURM: Simple Linux Utility for Resource Management*, JSSPP 2003.
# - E. Gabriel et al., *Open MPI: Goals, Concept, and Design of a Next Generation MPI Implementation*,
#   EuroPVM/MPI, 2004.
# - LUMI documentation, *Distribution and binding*
#   ([docs.lumi-supercomputer.eu](https://docs.lumi-supercomputer.eu/runjobs/scheduled-jobs/distribution-binding/)).
# - J. W. Young, *A First Order Approximation to the Optimum Checkpoint Interval*, Communications of the ACM
#   17(9), 1974.
# - J. T. Daly, *A higher order estimate of the optimum checkpoint interval for restart dumps*, Future Generation
#   Computer Systems 22(3), 2006.
# - Llama Team, *The Llama 3 Herd of Models*, 2024 ([arXiv:2407.21783](https://arxiv.org/abs/2407.21783)), section
#   3.3.4.
# - T. S. Pillai et al., *All File Systems Are Not Created Equal*, OSDI 2014: what a power failure may leave between
#   `write`, `rename` and `fsync`.
# - J. Mohan, A. Phanishayee, V. Chidambaram, *CheckFreq: Frequent, Fine-Grained DNN Checkpointing*, FAST 2021.
# - J. Dean, L. A. Barroso, *The Tail at Scale*, Communications of the ACM 56(2), 2013.
#
# </details>

# %% [markdown]
# What you predicted, beside what was measured:

# %% demo=true
guesses
