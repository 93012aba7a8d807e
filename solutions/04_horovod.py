# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Horovod: data parallelism with five more lines
#
# Horovod turned a training program for one GPU into one for hundreds with five more lines, and a decade of programs for
# supercomputers use it. This unit teaches it on the real library, and builds what is behind those lines.
#
# After this unit you can
#
# - turn a program for one GPU into one that `horovodrun` starts on many, and say why each of the six steps is there;
# - scale a learning rate with the number of workers, and warm it up;
# - explain tensor fusion and negotiation, and build both;
# - write an optimizer that averages gradients while backward still computes;
# - read a Horovod timeline, and tune what it shows.

# %% tags=["parameters"]
ranks = 4
on = "simulated"

# %%
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from course_lib import Link, launch, per_rank
from graders import check, hint, progress, reset

# %% demo=true jupyter={"source_hidden": true}
# `%%needs` waits until an exercise is solved. The folded cells below hold the text to what was measured.
# %load_ext course_lib.notebook.magics

# %% [markdown]
# ## The picture
#
# ## 1 Centralised and decentralised
#
# ## 2 Six steps
#
# ## 3 The learning rate
#
# Linear scaling, warm-up.


# %% exercise="warmup_lr" points=4
def warmup_lr(step: int, warmup_steps: int, base_lr: float, size: int) -> float:
    """The learning rate of one step, scaled to `size` workers, with a gradual warm-up.

    step: from 0. warmup_steps: how many steps the warm-up takes; 0 for none. base_lr: the rate with which one
    worker trains well. size: workers, each with that worker's batch.

    Step 0 of a warm-up has the rate of a single worker. From there it grows by the same amount every step. Step
    warmup_steps is the first one with the rate of `size` workers, and all that follow have it too.
    """
    ### BEGIN SOLUTION
    grown = min(1.0, step / warmup_steps) if warmup_steps else 1.0
    return base_lr * (1 + (size - 1) * grown)
    ### END SOLUTION


# %% [markdown]
# ### A mistake in a tutorial
#
# `WarmupCallback` sets an optimizer's rate before every step, as Horovod's `LearningRateWarmupCallback` does.


# %%
class WarmupCallback:
    """Sets the learning rate before every step: initial_lr / size at first, initial_lr after warmup_steps."""

    def __init__(self, optimizer: Any, initial_lr: float, warmup_steps: int, size: int) -> None:
        self.optimizer = optimizer
        self.initial_lr = initial_lr
        self.warmup_steps = warmup_steps
        self.size = size

    def before_step(self, step: int) -> None:
        """step: from 0, counted over all epochs."""
        rate = warmup_lr(step, self.warmup_steps, self.initial_lr / self.size, self.size)
        for group in self.optimizer.param_groups:
            group["lr"] = rate


def tutorials_warmup(
    new_optimizer: Callable[[float], Any], learning_rate: float, size: int, steps_per_epoch: int
) -> WarmupCallback:
    """What the tutorial does: an optimizer with a scaled rate, and three epochs of warm-up."""
    optimizer = new_optimizer(learning_rate * size)
    return WarmupCallback(optimizer, initial_lr=1e-3 * size, warmup_steps=3, size=size)


# %% exercise="mend_warmup" points=3
def mend_warmup(
    new_optimizer: Callable[[float], Any], learning_rate: float, size: int, steps_per_epoch: int
) -> WarmupCallback:
    """The tutorial's warm-up without its mistakes: a WarmupCallback over an optimizer of its own.

    new_optimizer(lr): makes an optimizer; it is called once. learning_rate: with which one worker trains well.
    size: workers. steps_per_epoch: steps that every worker takes in an epoch.

    In its first step the training has the rate of one worker, and after three epochs that of `size` workers,
    which is also the rate that the optimizer is made with.
    """
    ### BEGIN SOLUTION
    scaled = learning_rate * size
    return WarmupCallback(new_optimizer(scaled), scaled, 3 * steps_per_epoch, size)
    ### END SOLUTION


# %% [markdown]
# ## 4 The same start, the same numbers
#
# Broadcast after models and optimizers exist; metrics that are averaged.


# %% exercise="broadcast_state" points=7
def broadcast_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Give every rank rank 0's model and optimizer, with which a training begins or goes on.

    Called on every rank of the default group. Models have one architecture, optimizers are of one kind and have
    the model's parameters, in one order. What rank 0 has may come from a checkpoint; what others have does not
    count.

    Afterwards every rank has rank 0's parameters and buffers, in the tensors that were there, and its optimizer
    has rank 0's options (each of optimizer.param_groups, beside "params") and rank 0's state. A parameter
    without a state on rank 0, as in a new optimizer, has none anywhere. On rank 0 nothing changes, and no rank
    takes a step.
    """
    ### BEGIN SOLUTION
    for tensor in chain(model.parameters(), model.buffers()):
        dist.broadcast(tensor.detach(), src=0)
    state = [optimizer.state_dict()]
    dist.broadcast_object_list(state, src=0)
    if dist.get_rank() != 0:
        optimizer.load_state_dict(state[0])
    ### END SOLUTION


# %% exercise="average_metrics" points=5
def average_metrics(metrics: dict[str, float], samples: int) -> dict[str, float]:
    """The means of metrics over all samples of all ranks, the same on every rank.

    metrics: on each rank the means over its own samples. All ranks have the same names, perhaps not in the same
    order. samples: how many this rank had; at least one rank had some. Where there were none, a metric may be
    anything, NaN too, and counts for nothing.

    Returns a new dictionary of floats, in the order of `metrics`, in double precision. One all_reduce, however
    many metrics there are.
    """
    ### BEGIN SOLUTION
    names = sorted(metrics)
    sums = [metrics[name] * samples if samples else 0.0 for name in names]
    total = torch.tensor([*sums, samples], dtype=torch.float64)
    dist.all_reduce(total)
    means = dict(zip(names, (total[:-1] / total[-1]).tolist(), strict=True))
    return {name: means[name] for name in metrics}
    ### END SOLUTION


# %% [markdown]
# ## 5 Tensor fusion


# %% exercise="plan_fusion" points=7
def plan_fusion(sizes: list[int], dtypes: list[str], threshold: int) -> list[list[int]]:
    """Which tensors are sent together, by the rules of Horovod 0.28 (FuseResponses in its controller.cc).

    sizes: bytes of each tensor, in the order in which they are to be sent; 0 is possible. dtypes: of each.
    threshold: bytes of the fusion buffer.

    Returns the messages in the order in which they are sent, each a list of positions in `sizes`, ascending;
    every tensor is in one of them. A message begins with the first tensor that is in none yet, however large it
    is. It takes the tensors of its dtype that come next, as long as all in it together do not exceed the
    threshold: the first that would ends the message. A tensor of another dtype does not end it, if there is room
    for it: it is passed over, and waits, as long as it, all that were passed over before it and all that the
    message holds by then together do not exceed the threshold.
    """
    ### BEGIN SOLUTION
    messages = []
    waiting = list(range(len(sizes)))
    while waiting:
        first = waiting.pop(0)
        message, filled, passed = [first], sizes[first], []
        while waiting:
            position = waiting[0]
            if dtypes[position] == dtypes[first] and filled + sizes[position] <= threshold:
                message.append(position)
                filled += sizes[position]
            elif filled + sum(sizes[each] for each in [*passed, position]) <= threshold:
                passed.append(position)
            else:
                break
            waiting.pop(0)
        waiting = passed + waiting
        messages.append(message)
    return messages
    ### END SOLUTION


# %% exercise="fuse" points=3
def fuse(tensors: list[Tensor]) -> Tensor:
    """The fusion buffer: all numbers of the tensors, end to end.

    tensors: at least one, all of one dtype. Of any shape, () and those without a number too, laid out in memory
    in any way, perhaps part of an autograd graph. They stay as they are.
    Returns a new 1-D tensor without history, with memory of its own: the numbers of tensors[0], as flatten()
    orders them, then those of tensors[1], and so on.
    """
    ### BEGIN SOLUTION
    return torch.cat([tensor.detach().flatten() for tensor in tensors])
    ### END SOLUTION


# %% exercise="unfuse" points=4
def unfuse(flat: Tensor, shapes: list[torch.Size]) -> list[Tensor]:
    """The tensors that lie end to end in a fusion buffer.

    flat: 1-D. shapes: of the tensors, in order; () and those without a number are possible.
    Returns one tensor a shape. No number is copied: what is written into one of them is written into `flat`.
    Raises ValueError if the shapes do not take up exactly the numbers that `flat` has.
    """
    ### BEGIN SOLUTION
    counts = [shape.numel() for shape in shapes]
    if sum(counts) != len(flat):
        raise ValueError(f"the shapes hold {sum(counts)} numbers, and the buffer {len(flat)}")
    return [part.view(shape) for part, shape in zip(flat.split(counts), shapes, strict=True)]
    ### END SOLUTION


# %% [markdown]
# ## 6 Negotiation: who has what


# %% exercise="ready_everywhere" points=9
def ready_everywhere(requests: list[str], table: dict[str, Any]) -> list[str]:
    """One cycle of the negotiation: which tensors have become ready on all ranks.

    Called on every rank of the default group, cycle after cycle. requests: names of the tensors that became
    ready on this rank since its last call; their order differs from rank to rank, and often there are none.
    table: this rank's memory between the cycles of a training, an empty dictionary at first; what is in it is up
    to you.

    Returns the names of the tensors that have now been requested by all ranks and have not been returned since,
    all of them, in one order on all ranks. A tensor that some rank lacks holds up no other. In the next step of
    the training the same names come again.

    Communication: rank 0, the coordinator, is told by every other rank, and tells them, in at most one
    dist.gather_object and one dist.broadcast_object_list a cycle, or what sends as much. A request is sent once,
    in the cycle in which it is made, and to rank 0 only.
    """
    ### BEGIN SOLUTION
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(requests, gathered, dst=0)
    answer = [None]
    if rank == 0:
        for names in gathered:
            for name in names:
                table[name] = table.get(name, 0) + 1
        answer = [[name for name, count in table.items() if count == size]]
        for name in answer[0]:
            del table[name]
    dist.broadcast_object_list(answer, src=0)
    return answer[0]
    ### END SOLUTION


# %% [markdown]
# ## 7 An optimizer that averages


# %% exercise="DistributedOptimizer" points=17
class DistributedOptimizer:
    """An optimizer whose gradients are averaged over the ranks while backward still computes.

    optimizer = DistributedOptimizer(SGD(model.parameters(), lr=0.1), model.named_parameters())
    optimizer.zero_grad()
    loss_fn(model(inputs), targets).backward()      # hooks start the all_reduce of what is complete
    optimizer.step()                                # waits, then steps with the mean gradients

    Constructor: no communication. The trainable parameters of named_parameters, in the reverse of their order,
    are laid into messages by plan_fusion's rules, with `threshold` bytes. One that comes under two names is
    sent once; frozen ones are not sent.

    backward: every backward_passes_per_step-th pass since the last step starts the messages; those before it
    only add to the gradients. A message is started, with async_op=True, as soon as all its gradients are complete
    and all messages before it have been started. Backward never waits for communication. One pass more than
    backward_passes_per_step raises RuntimeError: its gradients would not be sent.

    synchronize(): starts what is left, in order, waits for all, and leaves in every trainable parameter's .grad
    the mean over ranks; what a rank lacks counts as zero, and is there afterwards. A gradient that is there stays
    the same tensor. Several micro-batches are added up, not averaged.

    step(closure=None): synchronize(), unless that has been called since the last backward (to clip gradients,
    say), then the optimizer's own step(closure), once; returns what that returns. Also without a backward.

    zero_grad(set_to_none=True): the optimizer's own. Raises RuntimeError between a backward and its step() or
    synchronize(): what is under way would be lost.

    All else (param_groups, state, defaults, state_dict(), load_state_dict(), ...) is the optimizer's own.
    Communication of a step: one all_reduce a message, in one order on all ranks, and nothing else.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        backward_passes_per_step: int = 1,
        threshold: int = 128 * 2**20,
    ) -> None:
        self.optimizer = optimizer
        self.backward_passes_per_step = backward_passes_per_step
        ### BEGIN SOLUTION
        parameters = list(dict.fromkeys(p for _, p in named_parameters if p.requires_grad))[::-1]
        plan = plan_fusion([p.nbytes for p in parameters], [str(p.dtype) for p in parameters], threshold)
        self.messages = [[parameters[position] for position in message] for message in plan]
        for number, message in enumerate(self.messages):
            for parameter in message:
                parameter.register_post_accumulate_grad_hook(partial(self.gradient_ready, number))
        self.reset()
        self.synchronized = False
        ### END SOLUTION

    def __getattr__(self, name: str) -> Any:
        """What is not defined here is the optimizer's."""
        return getattr(self.__dict__["optimizer"], name)

    # The next three are a suggestion: change them as you like.

    def reset(self) -> None:
        """Forget the last step: no pass has been made, nothing is under way."""
        ### BEGIN SOLUTION
        self.passes = {parameter: 0 for message in self.messages for parameter in message}
        self.missing = [len(message) for message in self.messages]
        self.under_way = []
        ### END SOLUTION

    def gradient_ready(self, number: int, parameter: nn.Parameter) -> None:
        """The hook: a backward pass has added to the gradient of this parameter, which is in this message."""
        ### BEGIN SOLUTION
        self.synchronized = False
        self.passes[parameter] += 1
        if self.passes[parameter] > self.backward_passes_per_step:
            raise RuntimeError(f"more than {self.backward_passes_per_step} backward passes before step()")
        if self.passes[parameter] == self.backward_passes_per_step:
            self.missing[number] -= 1
        while len(self.under_way) < len(self.messages) and self.missing[len(self.under_way)] == 0:
            self.start_next()
        ### END SOLUTION

    def start_next(self) -> None:
        """Start the first message that is not under way."""
        ### BEGIN SOLUTION
        message = self.messages[len(self.under_way)]
        for parameter in message:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = fuse([parameter.grad for parameter in message])
        self.under_way.append((flat, dist.all_reduce(flat, async_op=True)))
        ### END SOLUTION

    def synchronize(self) -> None:
        """Complete the averaging."""
        ### BEGIN SOLUTION
        while len(self.under_way) < len(self.messages):
            self.start_next()
        for message, (flat, work) in zip(self.messages, self.under_way, strict=True):
            work.wait()
            flat /= dist.get_world_size()
            for parameter, mean in zip(message, unfuse(flat, [p.shape for p in message]), strict=True):
                parameter.grad.copy_(mean)
        self.reset()
        self.synchronized = True
        ### END SOLUTION

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Synchronize, then step; returns what the optimizer's step returns."""
        ### BEGIN SOLUTION
        if not self.synchronized:
            self.synchronize()
        self.synchronized = False
        return self.optimizer.step(closure)
        ### END SOLUTION

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        ### BEGIN SOLUTION
        if any(self.passes.values()):
            raise RuntimeError("zero_grad() between backward and step(): gradients would be lost")
        self.optimizer.zero_grad(set_to_none=set_to_none)
        ### END SOLUTION


# %% [markdown]
# ## 8 The timeline


# %% exercise="overlap_fraction" points=7
def overlap_fraction(trace: list[dict[str, Any]]) -> float:
    """How much of the all-reduces a training hides behind its backward passes, from a Horovod timeline.

    trace: the events of a timeline, as json.load gives them, in any order. "ph" says what an event is: "B" a
    beginning, with "name", "ts" (microseconds) and "pid"; "E" the end of what was last begun under that "pid"; "M"
    a name for a pid; others are moments. Every tensor has a pid. In each step of the training it is negotiated
    once ("NEGOTIATE_ALLREDUCE") and then reduced ("ALLREDUCE"); within that lies the time on the network, whose
    name ends in "_ALLREDUCE" and depends on the library: "GLOO_ALLREDUCE", "NCCL_ALLREDUCE", "MPI_ALLREDUCE".
    Tensors that were fused are on the network together, and each shows the same time. A training also broadcasts:
    that does not count.

    A step's backward pass ends when the negotiation of the last of its tensors does. Returns the share of the
    time with an all-reduce on the network that lies before the end of its step's backward pass: 0 to 1.
    """
    ### BEGIN SOLUTION
    open_spans, negotiated, network = {}, {}, {}
    for event in sorted(trace, key=lambda event: event.get("ts", -1)):
        stack = open_spans.setdefault(event.get("pid"), [])
        if event["ph"] == "B":
            stack.append((event["name"], event["ts"]))
        elif event["ph"] == "E":
            name, start = stack.pop()
            spans = negotiated if name == "NEGOTIATE_ALLREDUCE" else network
            if name.endswith("_ALLREDUCE"):
                spans.setdefault(event["pid"], []).append((start, event["ts"]))
    ends = [max(span[1] for span in step) for step in zip(*negotiated.values(), strict=True)]
    busy = hidden = 0
    for backward_end, step in zip(ends, zip(*network.values(), strict=True), strict=True):
        reached = 0
        for start, end in sorted(step):
            start, reached = max(start, reached), max(end, reached)
            busy += reached - start
            hidden += max(0, min(reached, backward_end) - start)
    return hidden / busy
    ### END SOLUTION


# %% [markdown]
# ## 9 Six steps, really
#
# The program for one GPU:


# %%
def train_alone(
    new_model: Callable[[], nn.Module],
    data: dict[str, Tensor],
    folder: Path,
    epochs: int,
    use_gpu: Callable[[int], torch.device],
) -> tuple[nn.Module, float]:
    """Train on one GPU, and go on where a checkpoint in `folder` ends; returns the model and its accuracy.

    data: "inputs" [n, 6], "labels" [n], and for the test "test_inputs" [m, 6], "test_labels" [m]. epochs: how many
    there are altogether. use_gpu(number): from then on this process uses this GPU of its node; returns the device.
    """
    device = use_gpu(0)
    model = new_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first = 0
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epochs"]

    for epoch in range(first, epochs):
        for start in range(0, len(data["inputs"]), 4):
            inputs = data["inputs"][start : start + 4].to(device)
            labels = data["labels"][start : start + 4].to(device)
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch + 1}
        torch.save(state, checkpoint)

    model.eval()
    with torch.no_grad():
        predicted = model(data["test_inputs"].to(device)).argmax(1)
    right = (predicted == data["test_labels"].to(device)).sum().item()
    return model, right / len(data["test_labels"])


# %% exercise="six_steps" points=12
def six_steps(
    new_model: Callable[[], nn.Module],
    data: dict[str, Tensor],
    folder: Path,
    epochs: int,
    use_gpu: Callable[[int], torch.device],
) -> tuple[nn.Module, float]:
    """`train_alone`, made for Horovod: `horovodrun -np 2` runs it on every process, with the same arguments.

    Import horovod.torch in here. The arguments are those of train_alone; nothing has been initialised.

    Rank r of p trains on the samples r, r + p, r + 2p, ... of "inputs", in this order and without shuffling, four a
    batch; n divides by 4p. The learning rate is scaled to p workers; there is no warm-up. Every rank tests on its
    part of the test samples, dealt out alike, of which m need not divide by p, and every rank returns the accuracy
    over all of them. new_model draws other weights on every rank; those of rank 0 count.

    folder is on the node's own disk: only rank 0's holds a checkpoint, and only rank 0 writes one, after every
    epoch, in the form of train_alone. A training that goes on does so on all ranks.
    """
    ### BEGIN SOLUTION
    import horovod.torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    device = use_gpu(hvd.local_rank())
    model = new_model().to(device)
    plain = torch.optim.SGD(model.parameters(), lr=0.05 * size, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    first = 0
    checkpoint = folder / "checkpoint.pt"
    if rank == 0 and checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epochs"]
    first = hvd.broadcast_object(first, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    all_inputs, all_labels = data["inputs"][rank::size], data["labels"][rank::size]
    for epoch in range(first, epochs):
        for start in range(0, len(all_inputs), 4):
            inputs = all_inputs[start : start + 4].to(device)
            labels = all_labels[start : start + 4].to(device)
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch + 1}
            torch.save(state, checkpoint)

    model.eval()
    with torch.no_grad():
        predicted = model(data["test_inputs"][rank::size].to(device)).argmax(1)
    right = (predicted == data["test_labels"][rank::size].to(device)).sum()
    right = hvd.allreduce(right, name="right", op=hvd.Sum).item()
    return model, right / len(data["test_labels"])
    ### END SOLUTION


# %% [markdown]
# ## 10 Tuning
#
# What a step takes with a threshold and a cycle time:


# %%
def step_seconds(
    sizes: list[int], ready: list[float], ranks: int, link: Link, threshold: int, cycle_seconds: float
) -> float:
    """Seconds from the beginning of backward until the last gradient is averaged, in a model of Horovod.

    sizes: bytes of the gradients. ready: seconds after which each is complete, ascending. link: between two of the
    ranks, which stand in a ring. Every cycle_seconds, or as soon as the last cycle's messages are through, the
    ranks negotiate, which takes two latencies; then what is ready everywhere is sent as plan_fusion says, one message
    after another. Each takes a ring all-reduce, and the copies into the fusion buffer and out of it take as long as
    its bytes do at 10 GB/s; the copy of a message goes on while the one before it is on the network.
    """
    start, sent, done = 0.0, 0, 0.0
    while sent < len(sizes):
        start = max(start + cycle_seconds, done)
        copied = network = start + 2 * link.latency
        complete = sum(moment <= start for moment in ready)
        for message in plan_fusion(sizes[sent:complete], ["float32"] * (complete - sent), threshold):
            nbytes = sum(sizes[sent + position] for position in message)
            copied += nbytes / 10e9
            ring = 2 * (ranks - 1) * (link.latency + nbytes / ranks / link.bandwidth)
            network = max(copied, network) + ring
            done = network + nbytes / 10e9
        sent = complete
    return done


# %% exercise="tune_fusion" points=6
def tune_fusion(sizes: list[int], ready: list[float], ranks: int, link: Link) -> tuple[int, float]:
    """A fusion threshold, in bytes, and a cycle time, in seconds, for a model on a cluster.

    The arguments are those of step_seconds, which says what a choice costs (and needs your plan_fusion). The
    threshold is an int of at least 1, the cycle time at least 0.1 ms. The less time a step takes with them, the more
    points. The answer has to come within a few seconds.
    """
    ### BEGIN SOLUTION
    thresholds = [sum(sizes) // parts for parts in (1, 2, 3, 4, 6, 8, 12, 16, 24)]
    cycles = {max(1e-4, ready[-1] / parts) for parts in (*range(1, 13), 14, 20, 40)}
    choices = [(threshold, cycle) for threshold in thresholds for cycle in cycles]
    return min(choices, key=lambda choice: step_seconds(sizes, ready, ranks, link, *choice))
    ### END SOLUTION


# %% [markdown]
# ## 11 Compression, elastic training, Horovod beside DDP
#
# ## 12 Now on nodes
#
# ## Where it comes from
#
# ## What goes wrong in practice
