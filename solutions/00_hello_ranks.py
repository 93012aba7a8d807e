# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Hello, ranks: one program, many processes
#
# A distributed training run is one program, started many times. Each copy is told its number, its **rank**, and how
# many copies there are. Nothing else tells the copies apart. What one of them knows, the others do not know unless it is sent to
# them.
#
# After this unit you can
#
# - say why a large model has to be trained on many devices, and how much faster that can get at best;
# - tell rank, local rank, node, world size, process group and backend apart;
# - write one function that runs on every rank, and run it on simulated ranks and on real processes;
# - pass messages with `send` and `recv`, and read from a report why a program hangs;
# - name the collective operation that a sentence describes, and fix a program whose ranks do not make the same calls.

# %% tags=["parameters"]
ranks = 4
on = "simulated"

# %%
import os

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import Cluster, CollectiveMismatch, Deadlock, Link, launch, per_rank
from graders import check, hint, predict, progress, reset

# %% demo=true jupyter={"source_hidden": true}
# `%%ranks` runs a cell on every rank (section 2); `%%needs` waits until an exercise is solved.
# %load_ext course_lib.notebook.magics

# %% [markdown]
# ## The picture
#
# Two machines, called **nodes**, with four GPUs each. One process drives one GPU, so eight processes run:

# %% demo=true
from course_lib.figures.pictures import layout_picture

layout_picture(nodes=2, gpus_per_node=4)

# %% [markdown]
# - The **rank**, also called global rank, is a process's number among all, from 0.
# - The **world size** is how many there are: 8.
# - The **local rank** is its number on its own node, from 0 on every node. It chooses the GPU.
#
# Links inside a node are fast, links between nodes are slower. Every process has a memory of its own: what others are to
# know of it has to be sent.
#
# **Predict, before you measure.** Write your guesses into the cell below.
#
# 1. GPT-3 took $3.14 \cdot 10^{23}$ floating-point operations to train. How long does one GPU need that really does
#    $6.7 \cdot 10^{13}$ of them a second? (Section 1)
# 2. Of a program's work, 95 % can be shared out among workers. How much faster do 1,000 workers make it? (Section 1)
# 3. Eight ranks stand in a ring, a message to a neighbour takes a millisecond, and a token goes once round. How long
#    does it take, and for how long does each rank send or receive? (Section 4)

# %% demo=true
guesses = predict(
    "00_hello_ranks",
    years_on_one_gpu=None,
    speedup_of_1000_workers=None,
    milliseconds_for_a_round=None,
    milliseconds_a_rank_sends_or_receives=None,
)

# %% [markdown]
# ## 1 Why distribute at all
#
# There are four reasons.

# %% demo=true
flop, flop_per_second = 3.14e23, 6.7e13
years = flop / flop_per_second / (365.25 * 24 * 3600)
print(f"time:   about {years:.0f} years on one GPU that keeps up 67 TFLOP/s")

parameters, bytes_each = 175e9, 2
print(f"memory: {parameters * bytes_each / 1e9:.0f} GB for 175 billion parameters of 16 bits each")

text_bytes, disk = 45e12, 1e9
print(f"data:   {text_bytes / disk / 3600:.1f} hours to read 45 TB of text once, at 1 GB/s")

days, gpus = {"a cluster": 90, "Summit": 1}, {"a cluster": 250, "Summit": 27_000}
for machine in days:
    print(
        f"drugs:  {days[machine]:2} day{'s' * (days[machine] > 1)} on {machine}: {days[machine] * gpus[machine]:,} GPU-days"
    )

# %% [markdown]
# - **Time.** Nobody waits 149 years. (TFLOP/s are $10^{12}$ floating-point operations a second. The numbers are GPT-3's;
#   section 8 says where they come from.) A lecture on LUMI, a supercomputer in Finland, has another example, the search for a drug among
#   40 billion molecules: approximately 90 days on 250 GPUs and 640 processor cores, or one day on the 27,000 GPUs of the supercomputer
#   Summit. That is 90 times sooner, for a fifth more GPU-days (GPUs times days). It costs so little more because no molecule has
#   to wait for another one's result.
# - **Memory.** 350 GB are more than four H100 GPUs hold, of 80 GB each, and more than two H200, of 141 GB each. (Both are
#   NVIDIA's.) And training needs several times as much as the weights alone (unit 01).
# - **Data.** GPT-3's text began with 45 TB, which is half a day of reading for one disk. Other data may not be brought
#   together at all: each hospital keeps its patients' images and trains where they are. This is called **federated**
#   learning.
# - **Batch size.** While a model trains, what its layers have computed, the **activations**, stays in memory for the backward
#   pass. So a GPU's memory limits how many samples it can take at a time. Small batches use a GPU badly, and with few samples
#   gradients are noisy. Four GPUs take a batch four times as large.
#
# Models have grown faster than GPUs. Mind the scale of the figure: from one grid line to the next there are ten times as many
# parameters.

# %% demo=true
from course_lib.figures.pictures import frameworks_picture, models_picture

models_picture()

# %% [markdown]
# In eight years, from AlexNet to GPT-3, the number of parameters grew almost three thousand times.
#
# So the work is cut up, and several devices do the parts at the same time. Which parts can be done at the same time?
# Training is three loops, one inside another: over epochs, over the batches of an epoch, over the layers of the model.
#
# - Two batches cannot be worked on at the same time, not even batches of different epochs: each needs the weights that the batch
#   before has led to. (Unit 08 does it all the same, with weights that are a little old.)
# - Two layers cannot work on one batch at the same time: each needs what the layer before has computed.
# - The samples of one batch do not need each other, so they can be shared out.
# - The numbers that one layer computes do not need each other, so they can be shared out too.
# - And while one layer works on some samples of the batch, another layer can work on other samples.
#
# So there are three ways to cut a training up. **Data**: each device has a part of the batch (unit 02). **Layers dealt out**:
# each device has some of the layers, and passes its results on to the next device (unit 05). **Layers cut up**: each device has a
# part of every layer (unit 06). Here are ten systems, each at the most devices and the largest network reported for it (not
# always in one run). FlexFlow cuts in several ways at once:

# %% demo=true
frameworks_picture()

# %% demo=true jupyter={"source_hidden": true}
# What the text says of the two figures.
from course_lib.figures.pictures.growth import FRAMEWORKS, MODELS

grown = {model.name: model.parameters for model in MODELS}
assert 2_900 < grown["GPT-3"] / grown["AlexNet"] < 3_000
assert len(FRAMEWORKS) == 10
most = {kind: max(f.devices for f in FRAMEWORKS if f.kind == kind) for kind in {f.kind for f in FRAMEWORKS}}
assert most["layers dealt out"] == 16 < most["layers cut up"] == 512 < most["data"] == 3072

# %% [markdown]
# Layers dealt out ran on 16 devices at most, layers cut up on 512, and data was shared out over as many as 3,072. So sharing out
# the data, **data parallelism**, goes furthest. In its plain form every device holds the whole model; unit 09 shows how to do with
# less. The three have other names too:
#
# | what is cut | also called |
# |---|---|
# | data | data parallelism |
# | layers dealt out | pipeline, inter-layer or inter-operator parallelism |
# | layers cut up | tensor, intra-layer or intra-operator parallelism |
# | either of the last two | model parallelism |
#
# ### How much faster?
#
# A **serial** program does one thing after another. A **parallel** one does some of its work at the same time on several
# workers, and the rest still one after another: reading a file, for instance, or adding up results. Here is a small job of
# five pieces. Four of them can be done at the same time, the rest cannot:

# %% demo=true
from course_lib.figures.pictures import serial_and_parallel_picture

rest, parts = 0.2, [0.2, 0.2, 0.2, 0.2]  # seconds
serial_and_parallel_picture(rest, parts)

# %% demo=true jupyter={"source_hidden": true}
# What the text says of the two times.
serial, parallel = rest + sum(parts), rest + max(parts)
assert (round(serial, 6), round(parallel, 6), round(serial / parallel, 6)) == (1, 0.4, 2.5)
assert round(sum(parts) / serial, 6) == 0.8

# %% [markdown]
# One worker takes 1 second, four take 0.4 seconds. The old time divided by the new one is the **speedup**, here 2.5. Four workers
# are not four times as fast, since three of them have nothing to do while one does the rest.
#
# Amdahl (1967) asked what that rest costs. Let one worker take 1 second, of which the fraction $f$ can be shared out evenly; in
# the picture $f$ is 0.8. What is the speedup with any number of workers?


# %% exercise="amdahl_speedup" points=3
def amdahl_speedup(parallel_fraction: float, workers: int) -> float:
    """How many times faster `workers` workers are than one, after Amdahl (1967).

    parallel_fraction: the part of one worker's time that can be shared out evenly, from 0 to 1; the
        rest stays serial, however many workers there are.
    workers: at least 1.
    Returns the time of one worker divided by the time of all: 5, for example, for 0.9 and 9 workers.
    """
    ### BEGIN SOLUTION
    serial = 1 - parallel_fraction
    return 1 / (serial + parallel_fraction / workers)
    ### END SOLUTION


# %% [markdown]
# The cell with `check` runs the exercise's grader: the same one that gives the grades. Each line of its table is one
# criterion, with what was seen. `hint("amdahl_speedup")` gives a hint, and another each time you ask; `reset("amdahl_speedup")`
# brings the empty cell back; `progress()` shows how far you are in all units. Later exercises build on earlier ones. Where you
# have left one out, the check says so, and how to go on without it.
#
# Now the second prediction.

# %% demo=true
# %%needs amdahl_speedup
for workers in (1, 10, 100, 1_000, 10_000):
    print(f"{workers:6,} workers: {amdahl_speedup(0.95, workers):6.2f} times as fast")

# %% demo=true jupyter={"source_hidden": true}
# %%holds amdahl_speedup
# The numbers in the text of this section.
assert round(years) == 149
assert parameters * bytes_each == 350e9 > max(4 * 80e9, 2 * 141e9)
assert 12 <= text_bytes / disk / 3600 < 13
gpu_days = {machine: days[machine] * gpus[machine] for machine in days}
assert gpu_days == {"a cluster": 22_500, "Summit": 27_000}
assert days["a cluster"] / days["Summit"] == 90
assert gpu_days["Summit"] / gpu_days["a cluster"] == 1.2
assert amdahl_speedup(0.95, 10_000) < 20
assert amdahl_speedup(0.95, 10_000) - amdahl_speedup(0.95, 1_000) < 0.5
guesses.measured(years_on_one_gpu=years, speedup_of_1000_workers=amdahl_speedup(0.95, 1_000))

# %% [markdown]
# With ever more workers the parallel part takes almost no time, and the serial part is all that is left. So the speedup
# has a limit, $1 / (1 - f)$, which is 20 here. The last 9,000 workers bring almost nothing.
#
# That is one reason why 100 GPUs do not train 100 times as fast. There are others:
#
# - All messages may have to pass one server in the middle (units 07 and 08).
# - Some devices are slower, and the others wait for them (unit 03).
# - A message takes time: a fixed time, the network's **latency**, however short the message is, and a time for each of its
#   bytes. The network's **bandwidth** is the number of bytes that it carries in a second. Between distant places the latency is
#   high and the bandwidth low (unit 07).
# - Data may differ from place to place, as from one hospital to the next (unit 08).
#
# GPUs that wait draw power too.
#
# **Question for the slider:** how parallel must a program be for 1,024 workers to be worth 500?

# %% demo=true
# %%needs amdahl_speedup
from course_lib.figures.pictures import speedup_picture
from course_lib.notebook.widgets import Slider, explore


def speedups(parallel_fraction: float):
    """Speedup against workers, up to 1,024."""
    figure = speedup_picture(amdahl_speedup, [parallel_fraction])
    figure.suptitle(f"{amdahl_speedup(parallel_fraction, 1024):.1f} times as fast with 1,024 workers")
    return figure


fractions = [0.5, 0.8, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999]
explore(speedups, parallel_fraction=Slider(fractions, start=0.95, label="parallel fraction"))

# %% demo=true jupyter={"source_hidden": true}
# %%holds amdahl_speedup
# The answer in the text below.
assert amdahl_speedup(0.9985, 1024) < 500 < amdahl_speedup(0.999, 1024)
assert round(amdahl_speedup(0.999, 1024)) == 506

# %% [markdown]
# A parallel fraction of 0.999 gives 506: no more than one part in a thousand may be serial.
#
# Amdahl keeps the problem as it is and asks how much faster it is solved. One may also ask how much larger a problem can be
# solved in the same time: section 8.
#
# ## 2 Ranks: the same function everywhere
#
# The usual style is called **SPMD**, single program, multiple data: every process runs the same code, and asks for its
# rank where it has to differ. `launch` starts a function on every rank, and waits for all of them.


# %% demo=true
def greet(name: str) -> str:
    """Runs on every rank; each returns a value of its own."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    print(f"hello from rank {rank} of {world_size}")
    return f"{name} number {rank}"


run = launch(greet, "worker", ranks=ranks, on=on)
run.results

# %% [markdown]
# Each process was told its rank and the world size when it started. `get_rank` and `get_world_size` return these numbers without
# asking anybody, and `get_rank` is all that tells the four copies apart. `run.results[r]` is what rank `r` returned. The argument `"worker"` went to every rank;
# an argument that should differ is marked: `launch(f, per_rank([a, b, c, d]), ranks=4)` gives rank `r` item `r`.
#
# With `on="simulated"`, as this notebook is set, the ranks are **simulated**. Each is a thread of this notebook, they take
# turns, and a message takes as long as a model of the network says: that is **virtual time**. So a run is over in milliseconds and
# goes the same way every time. The function cannot tell: it calls plain `torch.distributed`, and will run unchanged on real processes
# (section 6) and on many nodes (section 7).

# %% [markdown]
# For trying things out there is a magic: `%%ranks 4` runs the whole cell on four ranks, each with a copy of your
# variables, and shows what each printed and its last value. Here the number and the engine come from the variables `ranks`
# and `on`, which are set at the top of this notebook.

# %% demo=true
# %%ranks $ranks --on $on
rank, world_size = dist.get_rank(), dist.get_world_size()
share = torch.tensor_split(torch.arange(10), world_size)[rank]
print("my part of ten numbers:", share.tolist())
share.sum().item()

# %% [markdown]
# Ten numbers on four ranks: two ranks get three numbers, two get two. That is how work is shared out everywhere in this
# workbook. No message was needed for it: every rank computed its own part from its rank.
#
# Rank, world size and the rest come from the program that starts the processes, the **launcher**. It puts them into
# environment variables, here as `torchrun` does:

# %% demo=true
# %%ranks $ranks --on $on
{name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}

# %% [markdown]
# ## 3 Where a rank sits
#
# The local rank is the one that chooses a device: `torch.cuda.set_device(local_rank)`. A program with
# `set_device(rank)` runs on one node, and on the second node asks for GPU number 4, where there are only 0 to 3.
#
# In the picture above, ranks fill one node before they go on to the next. `torchrun` always numbers them so, and
# Slurm's `srun` and MPI's `mpirun` do unless they are told otherwise. With `srun --distribution=cyclic` or `mpirun --map-by
# node` rank 0 is on the first node, rank 1 on the second, and so on, one to each node in turn. And the nodes need not have equally
# many ranks: a job may get eight places on one node, three on another and one on a third. Here is where a real Slurm then puts the
# ranks (on a virtual cluster of this workbook, by `srun --label hostname`):
#
# | | node 0 | node 1 | node 2 |
# |---|---|---|---|
# | `--distribution=block` | 0 1 2 3 4 5 6 7 | 8 9 10 | 11 |
# | `--distribution=cyclic` | 0 3 5 7 8 9 10 11 | 1 4 6 | 2 |


# %% exercise="rank_coordinates" points=6
def rank_coordinates(rank: int, gpus: list[int], cyclic: bool) -> tuple[int, int]:
    """Where a rank sits: (node, local_rank), both counted from 0.

    gpus: how many GPUs each node has; one rank a GPU. The list stays as it is.
    cyclic: if False, ranks fill one node before they go on to the next; if True, they go to the nodes
        in turn, and a full node is passed over.
    The ranks of a node have the local ranks 0, 1, 2, ... in the order of their ranks.
    """
    ### BEGIN SOLUTION
    places = [(node, local) for node, count in enumerate(gpus) for local in range(count)]
    if cyclic:  # All first places of the nodes come before all second ones.
        places.sort(key=lambda place: place[::-1])
    return places[rank]
    ### END SOLUTION


# %% demo=true jupyter={"source_hidden": true}
# %%holds rank_coordinates
# What Slurm did, and what is computed.
BY_SLURM = {
    False: [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10], [11]],
    True: [[0, 3, 5, 7, 8, 9, 10, 11], [1, 4, 6], [2]],
}
for cyclic, nodes in BY_SLURM.items():
    for node, on_node in enumerate(nodes):
        assert [rank_coordinates(rank, [8, 3, 1], cyclic) for rank in on_node] == [
            (node, local) for local in range(len(on_node))
        ]

# %% [markdown]
# Compare it with what the ranks of a simulated machine are told. A `Cluster` says how many nodes there are, how many
# devices each has, and how fast the links are. Each rank finds the number of its node in `GROUP_RANK`. The name is
# `torchrun`'s, which starts the processes of one node as one group (not the process groups of the next section).

# %% demo=true
# %%needs rank_coordinates
machine = Cluster(nodes=3, devices_per_node=2)


def told() -> tuple[int, int]:
    """(node, local rank) as the launcher has put them into the environment."""
    return int(os.environ["GROUP_RANK"]), int(os.environ["LOCAL_RANK"])


places = launch(told, cluster=machine).results
for rank, place in enumerate(places):
    print(f"rank {rank}: told {place}, computed {rank_coordinates(rank, [2, 2, 2], cyclic=False)}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds rank_coordinates
# What is told and what is computed are the same.
assert places == [rank_coordinates(rank, [2, 2, 2], cyclic=False) for rank in range(machine.size)]

# %% [markdown]
# You have computed where the ranks should sit. Where they do sit only the launcher knows, so a program reads it from the
# environment.
#
# ### Groups and backends
#
# A **process group** is a set of ranks that communicate. The **default group** holds all of them; `init_process_group`
# makes it, and `launch` has done so before your function starts. Smaller groups come later, with
# models that are cut up in two directions at once.
#
# The **backend** is the library that carries the messages.
#
# | backend | carries | use it for | keep in mind |
# |---|---|---|---|
# | **Gloo** | CPU tensors, over TCP; GPU tensors in part, by way of the CPU (section 5) | training on CPUs; small messages between hosts; trying things out | everywhere, also on a laptop |
# | **NCCL** (RCCL on AMD) | GPU tensors, over the links between the GPUs of a node and the network between nodes | training on GPUs, always | one rank a GPU; CPU tensors are refused |
# | **MPI** (the Message Passing Interface, a standard with many libraries) | CPU tensors; GPU tensors if the MPI library is built for it | machines whose network only their own MPI knows well | needs a PyTorch built from source |
#
# A group can have two backends: with `backend="cpu:gloo,cuda:nccl"` the tensor's device decides. Which of them your PyTorch has:

# %% demo=true
print(f"Gloo {dist.is_gloo_available()}, NCCL {dist.is_nccl_available()}, MPI {dist.is_mpi_available()}")
print("GPUs here:", torch.cuda.device_count())

# %% [markdown]
# ## 4 Messages
#
# The simplest operation has two sides. Rank 0 calls `dist.send(tensor, dst=1)`, and rank 1 calls
# `dist.recv(tensor, src=0)`, with a tensor of the same shape and dtype, into which the message is written. What `recv`
# returns is not the message. It is an int, the rank of the sender.

# %% demo=true
from course_lib.figures.pictures import collective_picture

collective_picture("point_to_point", ranks=2)

# %% [markdown]
# Both calls **block**: they return when their part is done. A `recv` is done when the message has arrived. When is a `send`
# done? That depends on the backend. Gloo waits until the other side has called `recv`, and this is what the simulator
# does. So here is a program that looks harmless. Two ranks want to swap their tensors:


# %% demo=true
from course_lib.figures.style import show


def swap(mine: Tensor) -> Tensor:
    """Send mine to the other rank, and return what it sent."""
    other = 1 - dist.get_rank()
    theirs = torch.empty_like(mine)
    dist.send(mine, dst=other)
    dist.recv(theirs, src=other)
    return theirs


two_tensors = per_rank([torch.tensor([10.0]), torch.tensor([20.0])])
try:
    launch(swap, two_tensors, ranks=2)
except Deadlock as deadlock:
    print(deadlock)
    show(deadlock.figure())

# %% [markdown]
# A **deadlock**: every rank waits for another one, in a circle. On a real machine nothing would be shown at all. The
# program would stand still, using your allocation, until somebody stops it. The report says what you would otherwise
# have to find out:
#
# - for each rank the call in which it waits, and the line;
# - the circle, in words and in the figure: 0 waits for 1 to receive, 1 waits for 0 to receive;
# - what to do. One of them can receive first. Or both use `isend` in the place of `send`.
#
# `isend` starts to send and returns at once. It gives back a **work handle**. The message is sent, and the tensor may be
# written again, only when the handle's `wait()` has returned. `irecv` does the same for receiving: the message is there
# when its `wait()` has returned. So every `isend` and every `irecv` needs its `wait()`.


# %% demo=true
def swap_with_isend(mine: Tensor) -> Tensor:
    """Send mine to the other rank, and return what it sent."""
    other = 1 - dist.get_rank()
    theirs = torch.empty_like(mine)
    work = dist.isend(mine, dst=other)
    sender = dist.recv(theirs, src=other)
    work.wait()
    print(f"recv returned {sender}, the message is {theirs.item():g}")
    return theirs


swapped = launch(swap_with_isend, two_tensors, ranks=2)

# %% demo=true jupyter={"source_hidden": true}
# recv returns the sender, and both have what the other one sent.
assert [tensor.item() for tensor in swapped.results] == [20, 10]
assert all(f"recv returned {1 - rank}," in swapped.outputs[rank] for rank in range(2))

# %% [markdown]
# And when a program hangs only sometimes? MPI libraries copy a short message into a buffer, so that `send` can return
# at once; a long one waits. Let the simulator buffer messages of up to 64 bytes:

# %% demo=true
buffering = Cluster(devices_per_node=2, eager_limit=64)
for length in (16, 17):
    tensors = per_rank([torch.zeros(length), torch.ones(length)])
    try:
        launch(swap, tensors, cluster=buffering)
        print(f"{length} numbers, {4 * length} bytes: all is well")
    except Deadlock as deadlock:
        print(f"{length} numbers, {4 * length} bytes: deadlock of ranks {deadlock.cycle}")
        longest_bad = length

# %% demo=true jupyter={"source_hidden": true}
# Only the longer of the two messages hangs.
assert longest_bad == 17

# %% [markdown]
# The program was wrong with 16 numbers too. It passed its tests, and will hang on the day when somebody makes the
# tensor longer. This is why the simulator buffers nothing unless you ask it to. A program whose sends wait for each other
# then hangs in the simulator with every length, and not only on some machine with some length.
#
# The simulator does not find every mistake. It shows one order of events, the same in every run; real processes show many. So a
# program that will run on real processes should be tried on real processes as well.
#
# Now yours. The $p$ ranks stand in a ring, and a token goes once round. (A message can have a number, its **tag**. It is 0 if
# you do not give one.)

# %% demo=true
from course_lib.figures.pictures import ring_picture

ring_picture(ranks)


# %% exercise="pass_the_token" points=6
def pass_the_token(token: Tensor) -> Tensor:
    """Pass a token once round the ring of all ranks; each rank adds its own rank to it.

    token: on rank 0 the token; on the others a tensor of its shape and dtype to receive into.

    The token starts at rank 0, goes from rank to rank, and from the last back to 0. A rank
    adds its number to the token that it received, sends it on, and returns it: of four ranks, rank 2
    returns the start plus 1 + 2, and rank 0 the start plus 1 + 2 + 3.

    Each rank sends one message and receives one, with send and recv (or isend, irecv and their wait). A
    single rank returns the token.
    """
    ### BEGIN SOLUTION
    rank, size = dist.get_rank(), dist.get_world_size()
    before, after = (rank - 1) % size, (rank + 1) % size
    if size == 1:
        return token
    if rank == 0:
        dist.send(token, dst=after)
        dist.recv(token, src=before)
    else:
        dist.recv(token, src=before)
        token += rank
        dist.send(token, dst=after)
    return token
    ### END SOLUTION


# %% demo=true
# %%needs pass_the_token
tokens = per_rank([torch.tensor([100.0]), *(torch.zeros(1) for _ in range(ranks - 1))])
run = launch(pass_the_token, tokens, ranks=ranks, on=on)
print(run.results)
run.traffic

# %% [markdown]
# `run.traffic` counts messages and bytes, rank by rank: one message of four bytes each. Now the third prediction: a
# message takes a millisecond, and time is virtual. A bar of the timeline begins when the rank makes the call and ends when
# the call returns. So a bar named `recv` is mostly waiting: only its last millisecond is the message.
#
# **Question for the slider:** how does the time grow with the number of ranks, and how many of them do something useful at
# any moment?


# %% demo=true
# %%needs pass_the_token
from course_lib.notebook.widgets import Slider, explore


def one_round(ranks: int):
    """One round of the token, a millisecond a message."""
    slow = Cluster(devices_per_node=ranks, intra_node=Link(latency=1e-3, bandwidth=1e9))
    return launch(pass_the_token, torch.zeros(1), cluster=slow)


def token_on(ranks: int):
    """Its timeline."""
    round_trip = one_round(ranks)
    return round_trip.timeline(title=f"{ranks} ranks: {round_trip.seconds * 1e3:.1f} ms")


explore(token_on, ranks=Slider([2, 4, 8, 16], start=8, label="ranks"))

# %% [markdown]
# In numbers. Every message occupies two ranks for as long as it is on its way, the one that sends it and the one that
# receives it:

# %% demo=true
# %%needs pass_the_token
from course_lib.runtime.communication.messages import messages

eight = one_round(8)
busy = [0.0] * 8
for message in messages(eight.events):
    for rank in (message.send.rank, message.receive.rank):
        busy[rank] += message.arrival - message.departure
for rank, seconds in enumerate(busy):
    idle = eight.seconds - seconds
    print(f"rank {rank}: sends or receives for {seconds * 1e3:.1f} ms, does nothing for {idle * 1e3:.1f} ms")

# %% demo=true jupyter={"source_hidden": true}
# %%holds pass_the_token
# The answer to the third prediction: 8 ms, of which each rank sends or receives for 2 ms.
assert round(eight.seconds * 1e3, 1) == 8
assert all(round(seconds * 1e3, 1) == 2 for seconds in busy)
for count in (2, 4, 16):
    assert round(one_round(count).seconds * 1e3, 1) == count
guesses.measured(
    milliseconds_for_a_round=eight.seconds * 1e3, milliseconds_a_rank_sends_or_receives=busy[0] * 1e3
)

# %% [markdown]
# Eight ranks, eight messages, eight milliseconds: the time grows with the number of ranks. Each rank sends or receives for
# two milliseconds and does nothing for six. At any moment one message is on its way, and only its sender and its receiver
# have something to do. The program runs on eight processors and is serial. Nothing is wrong with its messages. What is
# wrong is their order: each waits for the one before.
#
# So being distributed does not make a program parallel. The good algorithms of the later units use the same ring, but in
# such an order that all links are busy all the time.
#
# ## 5 Collectives: everybody at once
#
# Why do ranks have to talk at all? Take three products of matrices, $A = BC$, $D = EF$ and $G = AD$. The first two do not need each
# other, so rank 0 computes $A$ while rank 1 computes $D$. Then $G$ needs both. In such a program there are three kinds of
# communication:
#
# - **Synchronization.** $G$ cannot begin before both are there. $D$'s factors are twice as long, so rank 0 is done first and has
#   to wait.
# - **Data movement.** $D$ is on rank 1, and has to be sent.
# - **Collective computation.** One result of all ranks' values. $G$ does not need one, but suppose that the program also computes
#   the sum of the squares of $A$ and $D$.


# %% demo=true
def three_products(width: int) -> None:
    """Rank 0 computes A and G, rank 1 computes D; both learn the sum of all squares."""
    rank = dist.get_rank()
    inner = width * (1 + rank)
    mine = torch.ones(width, inner) @ torch.ones(inner, width)  # A = B C on rank 0, D = E F on rank 1
    if rank == 1:
        dist.send(mine, dst=0)
    else:
        theirs = torch.empty_like(mine)
        dist.recv(theirs, src=1)
    squares = mine.square().sum()
    dist.all_reduce(squares)
    if rank == 0:
        mine @ theirs  # G = A D


two_devices = Cluster(
    nodes=2, inter_node=Link(latency=20e-6, bandwidth=2.5e9), flops=1e11, memory_bandwidth=1e11
)
products = launch(three_products, 256, cluster=two_devices)
products.timeline()

# %% demo=true jupyter={"source_hidden": true}
# Rank 0 waits for D for about as long as it has computed A, before anything is sent.
[waits] = [event for event in products.events if event.op == "recv"]
[gives] = [event for event in products.events if event.op == "send"]
assert waits.start < gives.start < waits.end
assert 0.9 < (gives.start - waits.start) / waits.start < 1.1

# %% [markdown]
# Rank 0's `recv` bar has two parts: first synchronization, while rank 1 still computes, then data movement. After it come
# a narrow bar for the squares and the bar of their sum, the collective. Data parallelism (unit 02) has all three kinds. Weights are moved at the start of the training; and
# in every step the ranks' gradients are added up, for which all wait for the slowest.
#
# Most communication in training follows a few patterns in which the whole group takes part. They have names, and a
# backend has a good algorithm for each. In `torch.distributed` **every rank of the group makes the call**, also those that
# only give or only receive.
#
# | operation | before | after |
# |---|---|---|
# | broadcast | one rank has a tensor | all have it |
# | scatter | one rank has a part for each | each has its part |
# | gather | each rank has a part | one rank has all parts |
# | all-gather | each rank has a part | all ranks have all parts |
# | reduce | each rank has a tensor | one rank has their sum (or maximum, ...) |
# | all-reduce | each rank has a tensor | all ranks have the sum |
#
# The same in pictures. The colour says on which rank a piece was at first.

# %% demo=true
from course_lib.figures.pictures import collectives_picture

collectives_picture(("broadcast", "scatter", "gather", "all_gather", "reduce", "all_reduce"), ranks=3)

# %% [markdown]
# Training needs all-reduce most of all: each rank has gradients of its own, and all ranks need the average. The token
# took a whole round to add up the ranks, and then only rank 0 had the sum. With all-reduce the sum of the ranks is a
# single call, and every rank has it:

# %% demo=true
# %%ranks $ranks --on $on
mine = torch.tensor([dist.get_rank()])
dist.all_reduce(mine)
mine.item()

# %% [markdown]
# Such a cell starts new ranks each time. To look at something step by step, have ranks that **stay**: `%ranks start 4` starts them,
# and cells under `%%ranks`, without a number, run on them. What a cell assigns is there in the next one. `%%rank 1` runs on one rank alone.

# %% demo=true
# %ranks start $ranks --on $on

# %% demo=true
# %%ranks
mine = torch.tensor([dist.get_rank() + 1])

# %% demo=true
# %%ranks
dist.all_reduce(mine)

# %% demo=true
# %%rank 1
mine.item(), dist.get_world_size()

# %% demo=true
# %ranks stop

# %% [markdown]
# A mistake in a cell, such as a rank that waits for ever, is told with its line, and the ranks are there for the next cell.
# [docs/debugging.md](../../docs/debugging.md) brings a script of your own to ranks in this way.
#
# Not every backend has all of them. PyTorch's documentation ([torch.distributed, Backends](https://docs.pytorch.org/docs/stable/distributed.html))
# has a table of the functions and of the tensors, on the CPU or on a GPU, with which each backend offers them. (Reduce-scatter and
# all-to-all come in unit 07. A **barrier** sends no tensor: it returns when all ranks have called it.)
#
# | | Gloo, CPU | Gloo, GPU | MPI, CPU | NCCL, GPU |
# |---|---|---|---|---|
# | `send`, `recv` | yes | no | yes | yes |
# | `broadcast`, `scatter`, `gather`, `all_gather` | yes | yes | yes | yes |
# | `reduce`, `all_reduce` | yes | yes | yes | yes |
# | `reduce_scatter` | yes | yes | no | yes |
# | `all_to_all` | yes | yes | yes | yes |
# | `barrier` | yes | no | yes | yes |
#
# MPI takes GPU tensors as well, if the MPI library with which PyTorch was built does. NCCL takes no CPU tensors at all. (The
# folded cell below tries Gloo's first column, on simulated ranks and on real processes.)


# %% demo=true jupyter={"source_hidden": true}
def try_all() -> list[str]:
    """Call each function once, on two ranks; returns the names of those that returned."""
    rank, one = dist.get_rank(), torch.ones(1)
    two, parts = [torch.ones(1), torch.ones(1)], [torch.ones(1), torch.ones(1)]
    of_root = parts if rank == 0 else None
    calls = {
        "send, recv": lambda: dist.send(one, dst=1) if rank == 0 else dist.recv(one, src=0),
        "broadcast": lambda: dist.broadcast(one, src=0),
        "scatter": lambda: dist.scatter(one, of_root, src=0),
        "gather": lambda: dist.gather(one, of_root, dst=0),
        "all_gather": lambda: dist.all_gather(two, one),
        "reduce": lambda: dist.reduce(one, dst=0),
        "all_reduce": lambda: dist.all_reduce(one),
        "reduce_scatter": lambda: dist.reduce_scatter(one, two),
        "all_to_all": lambda: dist.all_to_all(parts, two),
        "barrier": lambda: dist.barrier(),
    }
    for call in calls.values():
        call()
    return list(calls)


tried = {engine: launch(try_all, ranks=2, on=engine).results[0] for engine in ("simulated", "processes")}
# What the table says, as far as this PyTorch can be asked: all of Gloo's functions on the CPU, and who takes which tensors.
assert len(tried["simulated"]) == len(tried["processes"]) == 10
assert dist.Backend.backend_capability["nccl"] == ["cuda"]
assert dist.Backend.backend_capability["gloo"] == dist.Backend.backend_capability["mpi"] == ["cpu", "cuda"]

# %% [markdown]
# Which operation is it? Think before you open the answer.
#
# 1. At the start rank 0 reads a checkpoint, and all ranks need the weights.
# 2. Each rank has counted its hits on a part of the test set, and rank 0 prints the accuracy.
# 3. Each rank holds a quarter of a weight matrix, and all ranks need the whole matrix for the next layer.
# 4. All ranks stop as soon as one of them has seen a NaN.
#
# <details><summary>Answers</summary>
#
# 1. Broadcast. 2. Reduce, of two numbers: hits and samples. 3. All-gather. 4. All-reduce with the maximum of a flag. If
# only the rank that has seen the NaN stopped, the others would wait for it in their next collective.
#
# </details>
#
# ### Find the mistakes
#
# A colleague's program computes the mean and the largest of numbers that are spread over all ranks. It has worked for a year, on
# one rank. Now it runs on four:


# %% demo=true
def statistics(mine: Tensor) -> tuple[float, float]:
    """The mean and the largest of all ranks' numbers, on every rank. mine: this rank's, float32."""
    if len(mine) == 0:
        return 0.0, 0.0
    total, largest = mine.sum(), mine.max()
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        count = torch.tensor(len(mine))
        dist.all_reduce(count)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return total.item() / count.item(), largest.item()


def shared_out(count: int) -> list[Tensor]:
    """The numbers 1 to count on four ranks; where they are few, some rank has none."""
    return list(torch.arange(1.0, count + 1).tensor_split(4))


try:
    launch(statistics, per_rank(shared_out(10)), ranks=4)
except CollectiveMismatch as mismatch:
    print(mismatch)

# %% [markdown]
# A **mismatch**: the ranks' calls do not belong together. The report names the call by its number, and for each rank the line. Rank 0
# is in another line than all others. Which line should all of them have come to?
#
# When that is fixed the program works, until somebody has three numbers only. Then the report is another one. Fix both mistakes,
# and run your program on `shared_out(10)` and on `shared_out(3)` before you check it.


# %% exercise="mend_statistics" points=6
def mend_statistics(mine: Tensor) -> tuple[float, float]:
    """The mean and the largest of all ranks' numbers, two floats, the same on every rank.

    Called on every rank of the default group. mine: this rank's numbers, 1-D float32; do not change
    them. Some ranks may have none, but not all of them.
    Every rank makes the same calls: at most three, each with a tensor of at most 8 bytes (one
    64-bit number, or two of 32 bits).
    """
    ### BEGIN SOLUTION
    total = mine.sum()
    count = torch.tensor(len(mine))
    largest = mine.max() if len(mine) > 0 else torch.tensor(float("-inf"))
    dist.all_reduce(total)
    dist.all_reduce(count)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return total.item() / count.item(), largest.item()
    ### END SOLUTION


# %% demo=true
# %%needs mend_statistics
for count in (10, 3):
    print(f"1 to {count}:", launch(mend_statistics, per_rank(shared_out(count)), ranks=4).results[0])

# %% demo=true jupyter={"source_hidden": true}
# %%holds mend_statistics
for count in (10, 3):
    mended = launch(mend_statistics, per_rank(shared_out(count)), ranks=4)
    assert mended.results == [((count + 1) / 2, count)] * 4

# %% [markdown]
# ## 6 Now on real processes
#
# `on="processes"` starts real processes of the operating system, each with its own Python and its own memory. They talk
# over Gloo; where each rank has a GPU of its own, what is on it goes over NCCL. Ranks without one see no GPU. The function is the same.

# %% demo=true
# %%needs pass_the_token
simulated = launch(pass_the_token, tokens, ranks=ranks)
run = launch(pass_the_token, tokens, ranks=ranks, on="processes")
print(run.results)
print(f"{run.seconds * 1e3:.1f} ms, measured, from the first rank's start to the last one's end")
run.traffic

# %% demo=true jupyter={"source_hidden": true}
# %%holds pass_the_token
# The results and the traffic of simulated ranks and real processes are the same.
assert run.results == simulated.results
for rank in range(ranks):
    real, virtual = run.traffic[rank], simulated.traffic[rank]
    assert (real.sent, real.received, real.messages) == (virtual.sent, virtual.received, virtual.messages)

# %% [markdown]
# The numbers and the messages are the same as before. The time is not virtual any more, and it differs from run to run:
# the ranks do not start at the same moment, and the machine has other things to do. The timeline ends with the last call,
# a little before the last rank has returned.

# %% demo=true
# %%needs pass_the_token
run.timeline()

# %% [markdown]
"""
A deadlock is found here too, but not at once: nobody sees all processes at the same time. A watchdog waits until
nothing has moved for a while, asks every process where it stands, and ends them all.

## 7 Now on nodes

On a cluster a launcher starts the processes. Your function becomes a script that does what `launch` has done for you:
it makes the default group, and ends it.

```python
# hello.py
import os
import torch
import torch.distributed as dist

def main() -> None:
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()          # NCCL for GPU tensors, Gloo for CPU tensors
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}")
    dist.destroy_process_group()

main()
```

`torchrun` starts it on one machine, with four processes:

```bash
torchrun --standalone --nproc-per-node=4 hello.py
```

**Slurm** is the program that gives out the nodes on most large clusters. A job is a shell script that says what it needs
in `#SBATCH` lines. Here one `torchrun` a node starts that node's ranks, and all ranks find each other at the first node's
address:

```bash
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=00:05:00

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --cpus-per-task=4 torchrun --nnodes=2 --nproc-per-node=4 \
     --rdzv-backend=c10d --rdzv-endpoint="$head:29500" hello.py
```

Write this to `hello.sbatch`, add what your site wants (account, partition, GPUs), and submit it with
`sbatch hello.sbatch`. That makes eight ranks: `torchrun` sets `RANK`, `WORLD_SIZE` and `LOCAL_RANK` for each, and
`init_process_group()` reads them. Unit 03 explains each of these lines.
"""

# %% [markdown]
# ## 8 Where it comes from
#
# - **Amdahl's law.** G. Amdahl, *Validity of the single processor approach to achieving large scale computing
#   capabilities*, AFIPS 1967. **Gustafson's answer.** J. Gustafson, *Reevaluating Amdahl's law*, Communications of the ACM
#   31(5), 1988. **The serial fraction of a measured speedup.** A. Karp, H. Flatt, *Measuring parallel processor performance*,
#   Communications of the ACM 33(5), 1990.
# - **How far it goes in training.**
#
# | system | problem | result |
# |---|---|---|
# | DistBelief (J. Dean et al. 2012) | fixed: one step of one network | 12 times as fast on 81 machines; elsewhere in the paper a network 30 times larger than any before it |
# | FireCaffe (F. Iandola et al. 2016) | fixed: one training of GoogLeNet | 128 GPUs, 47 times as fast: 37 % efficiency |
# | P. Goyal et al. 2017 | scaled: 32 images a GPU | ImageNet in one hour on 256 GPUs with a batch of 8,192; about 90 % efficiency from 8 GPUs to 256 |
# | Horovod (A. Sergeev, M. Del Balso 2018, and its documentation) | scaled: each GPU keeps its batch | 512 GPUs: 90 % on Inception V3 and ResNet-101, 68 % on VGG-16 |
# | Megatron-LM (M. Shoeybi et al. 2019) | scaled: the model grows with the GPUs | 8.3 billion parameters on 512 GPUs at 15.1 PFLOP/s ($10^{15}$ operations a second): 76 % of 512 times one GPU |
#
# - **The first prediction.** GPT-3's operations and its text: T. Brown et al., *Language models are few-shot learners*, 2020
#   ([arXiv:2005.14165](https://arxiv.org/abs/2005.14165)), Table D.1 and section 2.2. $6.7 \cdot 10^{13}$ operations a second are what
#   NVIDIA states for an H100 SXM with 32-bit numbers and without its matrix units.
#
# - **The search for a drug** is the example of H. Agueny's lecture, *Large Scale Distributed Deep Learning on
#   Supercomputers*. It takes from T. Ben-Nun, T. Hoefler, *Demystifying Parallel and Distributed Deep Learning*, ACM Computing
#   Surveys 52(4), 2019 ([arXiv:1802.09941](https://arxiv.org/abs/1802.09941)), how common many nodes are: of the 252 papers
#   surveyed there, 159 name their hardware, and over the years more and more of them used GPUs and many nodes.
#
# - **Backends.** The table of section 5 is that of PyTorch's documentation of July 2025.
#
# - **Growth.** Parameters are those of the papers that introduced the models. The ten systems: D. Nichols et al., *A Survey and
#   Empirical Evaluation of Parallel Deep Learning Frameworks*, 2021 ([arXiv:2111.04949](https://arxiv.org/abs/2111.04949)).
#
# ### As fast, or as much?
#
# Amdahl keeps the problem as it is and asks how much faster it is solved. Gustafson (1988) asked another question: how
# much larger a problem can be solved in the same time? Let $p$ workers take one hour and spend the share $s$ of it on
# work that is not shared out. For all that they have done, one worker would need $s + (1 - s)\,p$ hours. This is the
# **scaled speedup**. It has no limit: what is serial stays as long as it was, and the parallel part grows with $p$.
#
# Training is usually scaled in this way. Each GPU keeps its batch of images, so in one step 512 GPUs work off 512 times as
# many. Horovod's authors report that 512 GPUs train VGG-16 with an **efficiency** of 68 %: they work off 68 % of the
# images that 512 times one GPU would. What does each of the two formulas make of it?

# %% demo=true
workers, efficiency = 512, 0.68
speedup = efficiency * workers
print(f"{workers} GPUs work off {speedup:.0f} times the images of one GPU")

scaled_share = (workers - speedup) / (workers - 1)  # s + (1 - s) p = speedup, solved for s
print(f"Gustafson: {scaled_share:.0%} of the time went into what is not shared out")

fixed_share = (workers / speedup - 1) / (workers - 1)  # Amdahl's formula, solved for 1 - f
print(f"Amdahl:    the same speedup of a problem of fixed size allows only {fixed_share:.2%} of serial work")

# %% demo=true jupyter={"source_hidden": true}
# The numbers in the text around this cell.
assert round(speedup) == 348
assert abs(scaled_share + (1 - scaled_share) * workers - speedup) < 1e-9
assert abs(1 / (fixed_share + (1 - fixed_share) / workers) - speedup) < 1e-9
assert round(scaled_share, 2) == 0.32
assert round(fixed_share, 4) == 0.0009

# %% [markdown]
# So a third of the time may go into communication and waiting, and 512 GPUs still do the work of 348. For a problem of
# fixed size less than a thousandth of the work could be serial. Before you compare speedups, ask which of the two was
# measured.
#
# A. Karp and H. Flatt use Amdahl's formula backwards, as the last line above does: from a speedup that was measured on a problem of fixed size they
# compute which part of the work would have to be serial. The rows with a fixed problem give

# %% demo=true
for system, workers, speedup in [("DistBelief", 81, 12), ("FireCaffe, GoogLeNet", 128, 47)]:
    serial = (workers / speedup - 1) / (workers - 1)
    print(
        f"{system:21} {workers:4} workers, efficiency {speedup / workers:3.0%}: serial fraction {serial:.1%}"
    )

# %% [markdown]
# In such a fraction communication and waiting are counted as serial work. It says more than the efficiency alone, which
# falls with the number of workers even when the serial part stays the same.

# %% [markdown]
# ## 9 What goes wrong in practice
#
# - **It hangs, and says nothing.** Some rank waits for a message that nobody sends, or has left a collective out. Look for
#   communication inside of `if rank == 0:` first. PyTorch's time-out ends such a job after 10 minutes with NCCL and 30
#   with Gloo, unless `init_process_group(timeout=...)` says otherwise.
# - **It hangs with larger tensors only.** Two ranks send first, and short messages had been buffered (section 4).
# - **Eight lines of output instead of one.** Every rank prints. Print on rank 0, and keep communication out of that `if`.
# - **Everything lands on GPU 0.** Nobody has called `set_device(local_rank)`. NCCL then finds two ranks on one device and
#   refuses.
# - **"Address already in use".** Two jobs on one node have chosen the same port. `torchrun --standalone` finds a free one.
# - **More ranks, no more speed.** Only the serial part is left (section 1), or messages wait for each other in a row
#   (section 4). The timeline shows which.
# - **`torchrun` waits, and warns that addresses "cannot be retrieved".** The machine's own name leads to no address, as on
#   some laptops. On one machine `--local-addr=localhost` helps.
# - **It returns, and a message is lost.** An `isend` or `irecv` was never waited for (section 4).
# - **`RANK` is missing.** The script was started with `python` and not by a launcher. Under plain `srun` the rank is in
#   `SLURM_PROCID`, under `mpirun` in `OMPI_COMM_WORLD_RANK`; unit 03 reads them all.

# %% [markdown]
# What you predicted, beside what was measured:

# %% demo=true
guesses

# %% demo=true
progress()
