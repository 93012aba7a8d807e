# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Training on one device: fifteen steps
#
# Before a training is spread over many devices it should be right on one, and you should know how much time and memory it
# takes there. This unit takes it apart into fifteen steps. Later units change five of them and leave the others alone.
#
# After this unit you can
#
# - name the fifteen steps, in order, and say which of them change with many devices;
# - write a training step, an evaluation and the loop round both, exact also for a batch that is shorter than the others;
# - train with batches that do not fit into memory;
# - measure how fast a training is, on a device that lags behind your program;
# - say how much memory a training needs before you start it.

# %% tags=["parameters"]
dataset = "digits"
epochs = 20

# %%
import time
from collections.abc import Callable, Iterable
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from course_lib import launch, per_rank
from graders import check, hint, predict, progress, reset

if dataset == "digits":
    # The images are tiny. Two threads that wait for each other at every layer cost more than they share.
    torch.set_num_threads(1)

# %% demo=true jupyter={"source_hidden": true}
# `%%needs` waits until an exercise is solved. The folded cells below check the text's numbers against what was measured.
# %load_ext course_lib.notebook.magics

# %% [markdown]
# ## The picture

# %% demo=true
from course_lib.figures.pictures.training_steps import steps_picture

steps_picture()

# %% [markdown]
# Data come in on the left. After the last epoch the function returns (15). An **epoch** is one pass over the training set, a
# **batch**, or mini-batch, is what goes through the model at once. The five marked steps are those at which devices that
# train together have to agree: who reads the data, who gets which part, whose gradients count, who validates what, who
# writes the checkpoint.
#
# **Predict, before you measure.** Write your guesses into the cell below.
#
# 1. Of the time that a batch takes, how much goes into taking and preparing it, into forward, into backward, and into the
#    update? (Section 5)
# 2. How many more samples a second does a batch of 256 bring than a batch of 1? (Section 5)
# 3. A model has 7.5 billion parameters and trains with Adam in mixed precision. How much memory do its weights, its gradients
#    and the optimizer's states take together, once all are there? (Section 6)

# %% demo=true
guesses = predict(
    "01_single_gpu",
    percent_of_a_step_that_takes_and_prepares=None,
    percent_of_a_step_in_forward=None,
    percent_of_a_step_in_backward=None,
    percent_of_a_step_in_the_update=None,
    times_as_many_samples_with_batches_of_256=None,
    gigabytes_of_model_states=None,
)

# %% [markdown]
# ## 1 One step
#
# Steps 6 to 10 belong together. They are the **training step**:
#
# 6. clear the gradients, since `backward` adds to what is there;
# 7. forward: the model turns a batch of images into **logits**, one number a class;
# 8. the loss: the mean cross-entropy between logits and labels. For one image it is $-\ln q$, if $q$ is the probability
#    that the model gives to the right class. Its unit is the **nat**, since the logarithm is the natural one: a model that
#    gives each of ten classes the same probability has a loss of $\ln 10 = 2.30$ nats;
# 9. backward: the gradient of the loss for every parameter, into `parameter.grad`;
# 10. update: the optimizer moves every parameter a little against its gradient, to where the loss is lower. Steps 6 to 10 again and
#     again are called **gradient descent**.
#
# One wants a higher accuracy, but accuracy changes in jumps and has no useful gradient. So the loss stands in for it. Before you
# write the step: which of the five may change places without changing the result?
#
# The step returns its loss, for the curves. Return it **detached**. A loss that still has its history keeps the graph of
# its step alive. `backward` has freed the activations in it, but the graph itself stays, and with each loss that somebody
# keeps the memory grows. And return it as a tensor, not as a number: to make a number of it, `loss.item()` has to wait until
# the device has computed it.


# %% exercise="train_step" points=4
def train_step(model: nn.Module, inputs: Tensor, targets: Tensor, optimizer: Optimizer) -> Tensor:
    """One step of training on one batch.

    inputs: [B, ...]. targets: labels [B], int64. model(inputs) gives logits [B, classes].
    optimizer: over the model's parameters, whose .grad may hold old gradients.

    One optimizer step along the gradient of this batch's mean cross-entropy, with one forward and one
    backward pass. The model's mode (training or evaluation) stays as it is.
    Returns the loss before the update: a scalar tensor, detached. Nothing waits for the device.
    """
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()
    ### END SOLUTION


# %% [markdown]
# <details><summary>Answer: which of the five may move</summary>
#
# Of the five only clearing may move: anywhere but between backward and update. (Who clears last relies on the caller for the first
# step.)
#
# </details>
#
# Twenty steps on one and the same batch: the loss must fall. If it does not, something is wrong with the step, and no
# amount of data will help. It is the first test of any training code.

# %% demo=true
from course_lib.data import load
from course_lib.models import SmallCNN, parameter_count

data = load(dataset)
(channels, _, size), class_count = data.image_shape, len(data.classes)
print(f"{len(data.train):,} images for training, {len(data.test):,} for testing, {class_count} classes")

torch.manual_seed(0)
model = SmallCNN(channels, class_count, size, dropout=0.25)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
images, labels = data.train[:32]

# %% demo=true
# %%needs train_step
losses = [train_step(model, images, labels, optimizer).item() for _ in range(20)]
print(
    f"{parameter_count(model):,} parameters; loss {losses[0]:.3f} nats at first, {losses[-1]:.3f} in the 20th step"
)

# %% demo=true jupyter={"source_hidden": true}
# %%holds train_step
# The loss begins near that of equal probabilities, and falls.
from math import log

if dataset == "digits":
    assert abs(losses[0] - log(class_count)) < 0.3
assert losses[-1] < losses[0] / 2

# %% [markdown]
# ## 2 Is it any good?
#
# Step 13 runs the model on samples that it has not been trained on. Three things make it a function of its own.
#
# **Mode.** Dropout and batch norm behave differently in training. `model.eval()` turns that off, and afterwards the model
# has to go back to the mode in which it was, or the next epoch trains without dropout and nobody notices.
#
# **No graph.** Where no `backward` follows, nothing has to be kept for it. Under `torch.no_grad()` a forward pass needs a fraction of the
# memory.
#
# **Exactness.** The last batch is usually shorter. The mean over batches of their means then counts its samples for
# more than the others. A hundred samples in batches of 32 leave four in the last: each of these would count eight times as
# much. With many batches the mistake is small, and an accuracy that depends on the batch size is wrong all the same.


# %% exercise="evaluate" points=6
def evaluate(model: nn.Module, loader: Iterable[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Mean cross-entropy and accuracy over all samples of a loader.

    loader: yields batches (inputs [B, ...], targets [B]) on the model's device.
    Returns (loss, accuracy), two floats, not rounded: the mean over all samples, and the share, from 0
        to 1, of those whose label has the largest logit.

    Runs the model itself, not a copy, in evaluation mode and without a graph, and leaves it in the mode
    in which it came.
    """
    ### BEGIN SOLUTION
    was_training = model.training
    model.eval()
    loss_sum, correct, samples = 0.0, 0, 0
    with torch.no_grad():
        for inputs, targets in loader:
            logits = model(inputs)
            loss_sum += functional.cross_entropy(logits, targets, reduction="sum").item()
            correct += (logits.argmax(dim=1) == targets).sum().item()
            samples += len(targets)
    model.train(was_training)
    return loss_sum / samples, correct / samples
    ### END SOLUTION


# %% demo=true
# %%needs train_step evaluate
from torch.utils.data import DataLoader

for batch_size in (7, 64, 360):
    loss, accuracy = evaluate(model, DataLoader(data.test, batch_size))
    print(f"batches of {batch_size:3}: loss {loss:.6f}, accuracy {accuracy:.4%}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds train_step evaluate
# The numbers in the text around this cell.
assert 100 % 32 == 4
assert 32 / 4 == 8
assert accuracy > 2 / class_count
reference = evaluate(model, DataLoader(data.test, 7))
assert abs(loss - reference[0]) < 1e-4
assert accuracy == reference[1]

# %% [markdown]
# After twenty steps on 32 images the model already recognises more than guessing would. The numbers do not depend on the
# batch size, up to rounding: a sum of floating-point numbers in another order is rounded in another way.
#
# ## 3 All fifteen
#
# `fit` is steps 3 to 13 of the picture, without 4 (the loader prepares the batches) and 12 (the caller sets the learning rate).
#
# The **host** is the computer with its processor, the **device** is the GPU in it. One thing about the device
# matters here: the program goes on long before the device has updated the weights, unless it asks the device for a number. So a loop that asks in every step keeps the device waiting. (To bring a batch over from ordinary memory waits as
# well; with pinned memory and `non_blocking=True` it need not. Here that does not count.)
#
# The check has a device even where there is no GPU: the simulated H100 of section 5, which PyTorch calls `lazy`. It refuses what
# a GPU refuses, and the check says in which line your program first waits for it.
#
# Now write the loop round your two functions. The caller has chosen the optimizer, and has perhaps used it already; the caller has
# set the random seed; and the caller wants the weights of the last epoch, not those of the best one. So make no new optimizer, set
# no seed, draw no random numbers, and put no weights back.


# %% exercise="fit" points=8
def fit(
    model: nn.Module,
    train_loader: Iterable[tuple[Tensor, Tensor]],
    validation_loader: Iterable[tuple[Tensor, Tensor]],
    optimizer: Optimizer,
    epochs: int,
    device: torch.device,
) -> list[tuple[float, float, float]]:
    """Train for some epochs on a device, and validate after each. Call train_step and evaluate.

    model: on any device. optimizer: over its parameters.
    train_loader, validation_loader: each pass yields batches (inputs [B, ...], targets [B]) in the
        host's memory. They have no len().

    Moves model and batches to the device. Each epoch makes one step, in training mode, on each batch of
    train_loader, and then validates. While the steps go on, nothing waits for the device.
    Returns (training loss, validation loss, validation accuracy) for each epoch, not rounded. The first
    is the mean of train_step's losses over the epoch's samples.
    """
    ### BEGIN SOLUTION
    model.to(device)
    history = []
    for _ in range(epochs):
        model.train()
        total, samples = torch.zeros((), device=device), 0
        for inputs, targets in train_loader:
            total += train_step(model, inputs.to(device), targets.to(device), optimizer) * len(targets)
            samples += len(targets)
        moved = ((inputs.to(device), targets.to(device)) for inputs, targets in validation_loader)
        history.append((total.item() / samples, *evaluate(model, moved)))
    return history
    ### END SOLUTION


# %% [markdown]
# A real training, with your loop. The images come shifted by up to a pixel (a shifted seven is still a seven, and there
# are 3 x 3 places for it). Between the epochs a **scheduler** sets the learning rate, and the curves grow. The device is chosen in
# one line, and all others run on any device:

# %% demo=true
from course_lib.training.device import best_device
from course_lib.training.single_device import new_batches

device = best_device()
batch_size = 32 if dataset == "digits" else 128
train_batches, test_batches = new_batches(data, batch_size, device)

torch.manual_seed(0)
model = SmallCNN(channels, class_count, size, dropout=0.25).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)

# %% demo=true
# %%needs train_step evaluate fit
from course_lib.notebook.curves import LiveCurves

units = {"loss": "mean cross-entropy (nats)", "accuracy": "accuracy (%)"}
history, started = [], time.perf_counter()
with LiveCurves("01_single_gpu", total=epochs, unit="epoch", labels=units) as curves:
    for _ in range(epochs):
        history += fit(model, train_batches, test_batches, optimizer, 1, device)
        scheduler.step()
        train_loss, test_loss, accuracy = history[-1]
        curves.log(train_loss=train_loss, test_loss=test_loss, test_accuracy=100 * accuracy)
seconds = time.perf_counter() - started
print(f"test accuracy {accuracy:.2%} after {seconds:.1f} s on {device.type}")

# %% [markdown]
# The curves are on disk as well: if the browser closes or the kernel dies, `LiveCurves.reload("01_single_gpu")`
# brings them back.
#
# With the digits, the training loss lies above the test loss. That is no mistake: it is measured with dropout, on shifted
# images, and before the updates that follow in its epoch.
#
# What does the model still get wrong?

# %% demo=true jupyter={"source_hidden": true}
# %%needs train_step evaluate fit
from course_lib.figures.style import new_figure

model.eval()
with torch.no_grad():
    predicted = model(data.test.images.to(device)).argmax(1).cpu()
wrong = (predicted != data.test.labels).nonzero().flatten()[:10].tolist()
pairs = [(data.classes[data.test.labels[i]], data.classes[predicted[i]]) for i in wrong]
told = "; ".join(f"{label} taken for {guess}" for label, guess in pairs) or "none"

columns = max(2, len(wrong))
alt = f"Test images that are classified wrongly: {told}."
figure, axes = new_figure(alt=alt, height=1.4, width=0.9 * columns, columns=columns)
for place in axes:
    place.set_axis_off()
for place, index, (label, guess) in zip(axes, wrong, pairs):
    place.imshow(data.test.images[index].permute(1, 2, 0).squeeze(-1), cmap="gray_r")
    place.set_title(
        f"{label}, taken for {guess}" if len(label) < 3 else f"{label},\ntaken for {guess}", fontsize=9
    )
figure

# %% [markdown]
# Step 14, the checkpoint, in its simplest form. Weights alone are not enough: AdamW keeps two running means for each
# weight (section 6), and the scheduler has got to some point of its curve. A job that is killed while it writes leaves half a file; unit 03 takes care of that.

# %% demo=true
# %%needs train_step evaluate fit
from course_lib.home import course_home

checkpoint = course_home() / "01_single_gpu.pt"
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
torch.save({"epoch": epochs} | {name: part.state_dict() for name, part in parts.items()}, checkpoint)

saved = torch.load(checkpoint, map_location=device)
model.load_state_dict(saved["model"])
print(f"epoch {saved['epoch']}, {checkpoint.stat().st_size / 1e6:.2f} MB,", end=" ")
print(f"accuracy {evaluate(model, test_batches)[1]:.2%} after loading")

# %% demo=true jupyter={"source_hidden": true}
# %%holds train_step evaluate fit
# What the text around this cell says of the losses and of the checkpoint.
if dataset == "digits" and epochs == 20:
    assert history[-1][0] > history[-1][1]
weight_bytes = sum(parameter.nbytes for parameter in model.parameters())
assert 2.95 < checkpoint.stat().st_size / weight_bytes < 3.3
assert abs(evaluate(model, test_batches)[1] - history[-1][2]) < 1e-9

# %% [markdown]
# That is three times the size of the weights: AdamW keeps two more numbers for each.
#
# ## 4 A batch that does not fit
#
# The larger the batch, the more memory the forward pass leaves behind for backward. If a batch of $n$ samples does not fit,
# cut it into **micro-batches**, run forward and backward on one after the other, and let the gradients add up in
# `parameter.grad`, as `backward` does anyway. After the last one take one optimizer step.
#
# The sum has to be the gradient of the whole batch's loss $L$, which is a mean over $n$ samples. The loss of sample $i$ is
# $\ell_i$. Micro-batch number $k$ is the set $S_k$ of $m_k$ samples, and its loss $L_k$ is a mean over these:
#
# $$ L = \frac1n \sum_{i=1}^{n} \ell_i, \qquad L_k = \frac{1}{m_k} \sum_{i \in S_k} \ell_i . $$
#
# Most code divides each $L_k$ by the number of micro-batches. When is that right? (The last batch of an epoch is
# often shorter, and so is its last micro-batch.)


# %% exercise="accumulate_gradients" points=5
def accumulate_gradients(
    model: nn.Module,
    micro_batches: list[tuple[Tensor, Tensor]],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """A full batch's gradient, one micro-batch at a time.

    micro_batches: pairs (inputs [m, ...], targets [m]) on the model's device; m may differ.
    loss_fn(outputs, targets): their mean loss, a scalar.

    Afterwards every parameter's .grad, None before, is the gradient of the mean loss over all samples.
    Each micro-batch goes forward and backward, once, before the next. Parameters, mode and
    micro-batches stay as they are.
    Returns that mean loss, a detached scalar tensor. Nothing waits for the device.
    """
    ### BEGIN SOLUTION
    samples = sum(len(inputs) for inputs, _ in micro_batches)
    total = 0.0
    for inputs, targets in micro_batches:
        loss = loss_fn(model(inputs), targets) * (len(inputs) / samples)
        loss.backward()
        total += loss.detach()
    return total
    ### END SOLUTION


# %% [markdown]
# One batch of 64 at once, and in three pieces of 30, 30 and 4:

# %% demo=true
# %%needs accumulate_gradients
from course_lib.training.activation_memory import activation_bytes


def gradient_of(sizes: list[int]) -> Tensor:
    """The gradient that micro-batches of these sizes lead to, as one long vector."""
    model.zero_grad()
    pieces = zip(images.split(sizes), labels.split(sizes))
    accumulate_gradients(model, list(pieces), functional.cross_entropy)
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


images, labels = (tensor.to(device) for tensor in data.train[:64])
whole, pieces = gradient_of([64]), gradient_of([30, 30, 4])
print(f"relative difference of the gradients: {(pieces - whole).norm() / whole.norm():.1e}")
for count in (64, 30, 4):
    print(f"{count:3} images leave {activation_bytes(model, images[:count]) / 1e3:7.0f} kB for backward")

# %% demo=true jupyter={"source_hidden": true}
# %%holds accumulate_gradients
# The gradients agree to rounding, and 30 images leave 30/64 of what 64 leave.
assert (pieces - whole).norm() < 1e-4 * whole.norm()
kept_by = {count: activation_bytes(model, images[:count]) for count in (64, 30)}
assert abs(kept_by[30] / kept_by[64] - 30 / 64) < 0.02

# %% [markdown]
# The gradients agree to rounding. (The model is in evaluation mode here. Dropout would switch off different units each time.)
# The memory is that of the largest piece. The time does not fall: the work is the same.
#
# <details><summary>Answer: the weights</summary>
#
# The weights follow from the two formulas. Summed over all micro-batches, $m_k L_k$ is the sum of all samples' losses, so
#
# $$ L = \sum_k \frac{m_k}{n} L_k . $$
#
# With micro-batches of one size $m_k / n$ is one over their number. Where the last is shorter, the number of micro-batches is the
# wrong divisor, and no error says so. Unit 02 will meet the same formula again, with workers in the place of micro-batches.
#
# </details>
#
# ## 5 How fast?
#
# **Samples a second** is what one compares: between devices, batch sizes, and later numbers of workers. It looks easy to
# measure. Two things go wrong.
#
# **The first steps are slow.** Memory is allocated, libraries choose their algorithms, caches are cold. They do not count,
# and are called the **warm-up**.
#
# **A GPU lags behind your program.** A call such as `model(inputs)` puts work into the device's queue and returns at once. So
# while Python is in one line, the device may still be at work on what came many lines before. Below a simulated GPU does two
# steps. Its **host**, the program, takes 40 microseconds to put an operation into the queue. After the first step the program asks
# for a number, the loss:

# %% demo=true
from course_lib import Cluster, Run, span
from course_lib.cluster.device import Device

gpu = Cluster(device=Device(flops=1e12, memory_bandwidth=1e11, dispatch_seconds=40e-6))


def two_steps(width: int, batch_size: int) -> None:
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for layer in range(4)))
    x = torch.ones(batch_size, width)
    for number in (1, 2):
        with span(f"step {number}"):
            loss = layers(x).square().mean()
            loss.backward()
            layers.zero_grad()
        if number == 1:
            loss.item()


large = launch(two_steps, 1024, 512, ranks=1, cluster=gpu)
large.timeline(title="large operations")

# %% demo=true
small = launch(two_steps, 64, 8, ranks=1, cluster=gpu)
small.timeline(title="small operations")


# %% demo=true jupyter={"source_hidden": true}
def host_seconds(run: Run, what: str) -> float:
    return sum(event.seconds for event in run.events if event.kind == "host" and event.op == what)


def computing_part(run: Run) -> float:
    return sum(event.seconds for event in run.events if event.kind == "compute") / run.seconds


assert host_seconds(large, "waits") > 0.3 * large.seconds
assert host_seconds(small, "waits") < 0.01 * small.seconds
assert computing_part(large) > 0.95
assert computing_part(small) < 0.1

# %% [markdown]
# With large operations the device is busy throughout. The host has queued a whole step when the device has hardly begun it.
# To know the loss it has to wait until the device is there. With small operations the device is faster than its host. It idles
# until the next operation comes, more than nine tenths of the time.
#
# A clock in the program shows how fast Python fills a queue. A program can **synchronize** (`torch.cuda.synchronize()`): it waits
# until the queue is empty. That has a price. An empty queue means a device without work, until Python has put the next step
# into it. And it may be needed before the first step: whoever calls your function may have left work in the queue.


# %% exercise="measure_throughput" points=6
def measure_throughput(
    step: Callable[[], object],
    batch_size: int,
    warmup: int,
    steps: int,
    synchronize: Callable[[], None],
) -> float:
    """Samples a second of a training step, on a device that works off a queue.

    step(): queues one training step on batch_size samples, and may return before it is done.
    synchronize(): waits until the device has done all that has been queued.
    warmup: steps that come first and are not measured. steps: those that are measured, at least 1.

    The clock, time.perf_counter, runs from a moment when the queue is empty until all measured steps
    are done. Calls synchronize() at most twice, and not between measured steps. Returns samples a
    second, not rounded.
    """
    ### BEGIN SOLUTION
    for _ in range(warmup):
        step()
    synchronize()
    started = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize()
    return batch_size * steps / (time.perf_counter() - started)
    ### END SOLUTION


# %% [markdown]
# The second prediction, measured: samples a second for batches of several sizes. To have enough of them, the data are drawn
# with replacement.

# %% demo=true
from functools import partial
from statistics import median

from course_lib.figures.plots import line_figure
from course_lib.training.device import synchronize

wait = partial(synchronize, device)


def random_batch(batch_size: int) -> tuple[Tensor, Tensor]:
    """A batch of training samples on the device."""
    indices = torch.randint(0, len(data.train), (batch_size,))
    images, labels = data.train[indices]
    return images.to(device), labels.to(device)


def throughput(batch_size: int) -> float:
    """Samples a second of 3 to 100 training steps, fewer for larger batches, after 3 steps of warm-up."""
    batch = random_batch(batch_size)
    steps = max(3, min(100, 2048 // batch_size))
    return measure_throughput(lambda: train_step(model, *batch, optimizer), batch_size, 3, steps, wait)


# %% demo=true
# %%needs train_step measure_throughput
model.train()
batch_sizes = [1, 4, 16, 64, 256, 1024]
# Three rounds over all sizes, and the median of each size: what else the machine does falls on all of them alike.
rounds = [[throughput(batch_size) for batch_size in batch_sizes] for _ in range(3)]
rates = [median(of_size) for of_size in zip(*rounds)]
line_figure(
    {"training": (batch_sizes, rates)},
    x="batch size (samples)",
    y="samples a second",
    log_x=True,
    log_y=True,
    at_points=True,
    title=f"{rates[4] / rates[0]:.0f} times as many samples a second with a batch of 256 as with a batch of 1",
    alt="Samples a second against the batch size, both logarithmic: "
    + ", ".join(f"{rate:,.0f} at {batch_size}" for batch_size, rate in zip(batch_sizes, rates)),
)

# %% [markdown]
# Every step pays for some things once, however large the batch: calling some dozens of operations, updating all parameters.
# With one image there is little else. With hundreds of images these costs hardly count, and the curve flattens. On a GPU
# it flattens later and at a higher rate. Remember this curve when a batch is cut into parts for many workers: the
# smaller a worker's part is, the further to the left of this curve it works.
#
# Now the first prediction: where a step's time goes. Measure the step four times, each time with one phase more, and take
# differences. A single difference of two measurements may even be negative, since the machine also does other things. So
# the four are measured in turn, twenty-five times over, and each phase gets the median of its differences.

# %% demo=true
# %%needs train_step measure_throughput
from course_lib.figures.plots import bar_figure
from course_lib.training.single_device import random_shift


def prepare() -> tuple[Tensor, Tensor]:
    images, labels = random_batch(batch_size)
    return random_shift(images), labels


def forward() -> Tensor:
    images, labels = prepare()
    return functional.cross_entropy(model(images), labels)


def backward() -> None:
    optimizer.zero_grad()
    forward().backward()


def whole_step() -> None:
    train_step(model, *prepare(), optimizer)


def milliseconds(step: Callable[[], object]) -> float:
    """Mean time of ten steps, after one of warm-up."""
    return 1e3 / measure_throughput(step, 1, 1, 10, wait)


phases = ["take and prepare", "forward, loss", "clear, backward", "update"]
differences = []
for _ in range(25):
    until = [0.0, *(milliseconds(step) for step in (prepare, forward, backward, whole_step))]
    differences.append([later - earlier for earlier, later in pairwise(until)])
times = [median(of_phase) for of_phase in zip(*differences)]

for phase, spent in zip(phases, times):
    print(f"{phase:16} {spent:5.2f} ms, {spent / sum(times):4.0%} of the step")
print(f"backward takes {times[2] / times[1]:.1f} times as long as forward")
bar_figure(
    {"a batch": times},
    names=phases,
    y="milliseconds a batch",
    title=f"{sum(times):.2f} ms for a batch of {batch_size} on {device.type}",
    alt="Milliseconds a batch by phase: "
    + ", ".join(f"{phase} {spent:.2f}" for phase, spent in zip(phases, times)),
)

# %% demo=true jupyter={"source_hidden": true}
# %%holds train_step measure_throughput
# What the text around this cell says, of a CPU.
if device.type == "cpu":
    assert rates[4] > 2 * rates[0]
    assert times[2] > times[1]
percent = [100 * spent / sum(times) for spent in times]
guesses.measured(
    percent_of_a_step_that_takes_and_prepares=percent[0],
    percent_of_a_step_in_forward=percent[1],
    percent_of_a_step_in_backward=percent[2],
    percent_of_a_step_in_the_update=percent[3],
    times_as_many_samples_with_batches_of_256=rates[4] / rates[0],
)

# %% [markdown]
# On a CPU backward takes longer than forward: it computes two gradients for each layer, for its weights and for its inputs.
# In a large model the ratio is close to two, since matrix products take nearly all of the time. Here many small operations
# count as well, and the update is not cheap either: AdamW reads and writes every parameter several times, however small the
# batch.
#
# **And on a large GPU?** A bound on a step's time is the **roofline**: a tensor operation takes at least its floating-point operations
# at the device's rate, and at least the bytes that it reads and writes at its memory's. Take the longer of the two, and add up all operations.
# The simulator adds the queue: no operation begins before the host has queued it. Below are forward and backward of five
# Transformers in bfloat16, measured on an H100 (`course_lib.published.h100`) beside both; and what an operation takes here, in a
# Transformer so small that there is hardly anything to compute:

# %% demo=true
# %%needs measure_throughput
from course_lib.cluster import presets
from course_lib.models import Transformer, TransformerConfig, next_token_loss
from course_lib.published import h100, on_h100

tiny = Transformer(TransformerConfig(layers=4, width=64, heads=1, context=32)).to(device)
tokens = torch.zeros(1, 32, dtype=torch.int64, device=device)


def tiny_step() -> None:
    next_token_loss(tiny(tokens), tokens).backward()
    tiny.zero_grad()


h100_card = presets.one_h100().device
in_bfloat16 = [step for step in h100.STEPS if step.precision == "bfloat16"]
smallest = in_bfloat16[0]
here = 1e3 * milliseconds(tiny_step) / smallest.operations
print(f"microseconds an operation: {here:.0f} on this machine's {device.type}", end=", ")
print(f"{1e6 * h100_card.dispatch_seconds:.0f} on the H100")
told = {
    "roofline": [step.roofline / step.measured for step in in_bfloat16],
    "roofline and queue": [1e3 * on_h100.run_step(step).seconds / step.measured for step in in_bfloat16],
}
bar_figure(
    told,
    names=[f"{each.layers} x {each.width}" for each in in_bfloat16],
    y="predicted / measured",
    title="H100, bfloat16: layers x width of a Transformer",
    alt="Predicted as a part of the measured time of five Transformers: "
    + "; ".join(f"{name} " + ", ".join(f"{part:.2f}" for part in parts) for name, parts in told.items()),
)

# %% demo=true jupyter={"source_hidden": true}
# %%holds measure_throughput
assert 0.24 < min(told["roofline"]) < 0.25
assert round(max(told["roofline"]), 1) == 0.8
assert min(told["roofline and queue"]) > 0.79
assert sum(part > 0.86 for part in told["roofline and queue"]) == 3
assert (smallest.operations, round(smallest.roofline, 1), round(smallest.measured, 1)) == (291, 3.6, 14.7)
assert round(1e6 * h100_card.dispatch_seconds) == 44
assert round(1e3 * h100_card.dispatch_seconds * smallest.operations) == 13
assert round(h100_card.half_flops / h100_card.flops) == 15
in_float32 = [step.roofline / step.measured for step in h100.STEPS if step.precision == "float32"]
assert len(in_float32) == 5
assert min(in_float32) > 0.87
cnn = [1e3 * on_h100.run_small_cnn(images).seconds / ms for images, (_, ms) in h100.SMALL_CNN.items()]
assert [round(part, 1) for part in cnn] == [0.7, 0.6]

# %% [markdown]
# The roofline is a quarter to four fifths of what was measured. The smallest step takes 14.7 ms instead of 3.6: there the host is
# the bound. It takes 44 microseconds to queue an operation, and the step has 291 of them, which makes 13 ms, however fast the GPU
# is. More work an operation helps (larger batches, wider models), and so do fewer operations: `torch.compile` makes one of several, and a
# CUDA graph queues many at once.
#
# With the queue, three of the five are met within 14 %, and the other two within 21 %. (In float32 the same products take fifteen
# times as long, and the roofline alone is within 13 %.) Part of this comes from knowing CUDA's operations better: some move
# more bytes than they are given. A softmax goes backward by way of a product that is as large as its result. What is still
# missing is mostly in the matrix products: only large ones reach the rate that was measured for a large one. So it is with
# `SmallCNN`, whose convolutions have 1 and 32 channels: 256 and 4,096 images are predicted to take 0.7 and 0.6 of what they do.
#
# **Who prepares the batches?** Steps 3 to 5 cost the host time as well. Below the simulated H100 trains `SmallCNN` on batches of 1,024
# images, which a `DataLoader` prepares a sample at a time: first within your program, then in four **workers**, processes beside it.

# %% demo=true
# %%needs measure_throughput
by_itself = on_h100.run_epoch(1024, "a sample at a time", steps=4)
by_itself.timeline(title="the program prepares its batches")

# %% demo=true
# %%needs measure_throughput
with_workers = on_h100.run_epoch(1024, "a sample at a time", workers=4, steps=8)
with_workers.timeline(title="four workers prepare them")

# %% demo=true
# %%needs measure_throughput
print("An epoch of 60,000 images on the H100, in seconds")
epoch_errors = {}
for (in_batch, way), seconds in h100.EPOCHS.items():
    foretold = on_h100.epoch_seconds(in_batch, way)
    epoch_errors[in_batch, way] = foretold / seconds - 1
    print(f"batches of {in_batch:5,}, {way:18}: measured {seconds:.2f}, predicted {foretold:.2f}")
helped = on_h100.epoch_seconds(1024, "a sample at a time", workers=4)
print(f"batches of 1,024, a sample at a time by four workers: predicted {helped:.2f}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds measure_throughput
assert host_seconds(by_itself, "waits") > 0.8 * by_itself.seconds
assert max(map(abs, epoch_errors.values())) < 0.32
assert sum(abs(error) < 0.1 for error in epoch_errors.values()) == 3
assert all(error < -0.2 for (_, way), error in epoch_errors.items() if way == "on the GPU")
resident = on_h100.epoch_seconds(1024, "on the GPU")
assert 1.15 < helped / resident < 1.25
assert on_h100.epoch_seconds(1024, "a sample at a time") > 5 * resident
assert [round(1e6 * each) for each in on_h100.PREPARING["a sample at a time"]] == [100, 9]
assert round(1e6 * h100.SMALL_STEPS["SmallCNN, one image"]) == 74

# %% [markdown]
# While the program prepares a batch it queues nothing, and the GPU idles. Four workers prepare four batches in the time of one. Then
# the epoch takes a fifth longer than with data that lie on the GPU, instead of more than five times as long.
#
# Of the six epochs that were measured three are met within 10 %, and none is off by more than 32 %. With data on the GPU the prediction
# is too short: `SmallCNN` costs its host 74 microseconds an operation, and the simulated card's 44 are a Transformer's. How long the
# H100's host prepares was not measured. Taken is what another processor needs, 9 microseconds a sample and 100 a batch. So the loader
# is right in kind, and in numbers only as far as two processors are alike.
#
# ## 6 How much memory?
#
# Four kinds of data live on the device while a model trains:
#
# | what | how much |
# |---|---|
# | weights | a number a parameter |
# | gradients | a number a parameter |
# | optimizer states | SGD none, momentum one, Adam two numbers a parameter |
# | activations, kept for backward | grows with the batch and the depth |
#
# The first three are called **model states**. They do not depend on the batch. But they are not all there from the
# beginning. The weights are; the gradients are made by the first backward, and Adam's states by the first update:

# %% demo=true
images, labels = (tensor.to(device) for tensor in data.train[:64])
fresh = SmallCNN(channels, class_count, size).to(device)
adam = torch.optim.AdamW(fresh.parameters())


def model_state_bytes() -> list[int]:
    """Bytes of the weights, of the gradients, of the optimizer's states."""
    gradients = [parameter.grad for parameter in fresh.parameters() if parameter.grad is not None]
    states = [value for of_one in adam.state.values() for value in of_one.values() if value.dim()]
    return [sum(tensor.nbytes for tensor in part) for part in (fresh.parameters(), gradients, states)]


history = {"before the first sample": model_state_bytes()}
functional.cross_entropy(fresh(images), labels).backward()
history["after the first backward"] = model_state_bytes()
adam.step()
history["after the first update"] = model_state_bytes()
for moment, (weights, gradients, states) in history.items():
    print(f"{moment:24} weights {weights:,}, gradients {gradients:,}, Adam's states {states:,} bytes")

# %% demo=true jupyter={"source_hidden": true}
# The sentences around this cell.
weights = history["before the first sample"][0]
assert list(history.values()) == [[weights, 0, 0], [weights, weights, 0], [weights, weights, 2 * weights]]

# %% [markdown]
# From the second step on, all three are there. So a training that has survived two steps has enough memory for its model
# states.
#
# How many bytes a number has is a choice. In **mixed precision** the weights and gradients that forward and backward use
# have 16 bits. So half as many bytes are read and written, and a GPU's matrix units run at least twice as fast. The optimizer keeps a
# second copy of the weights, and its states, in 32 bits. Two examples show why. In the first a weight of 1 gets a thousand
# updates of 0.001 each. The second is a state of Adam: in each step it keeps the mean of the squared gradients,
# $v \leftarrow 0.999\,v + 0.001\,g^2$ for a gradient $g$. Let $v$ be 1 and all further gradients 0.

# %% demo=true
results = {}
for dtype in (torch.bfloat16, torch.float32):
    weight = square_mean = torch.tensor(1.0, dtype=dtype)
    for _ in range(1000):
        weight = weight + 0.001
        square_mean = 0.999 * square_mean
    results[dtype] = weight.item(), square_mean.item()
    print(f"{dtype}: the weight becomes {weight:.3f}, the state {square_mean:.3f}")

# %% demo=true jupyter={"source_hidden": true}
# What bfloat16 does to a weight and to a state, and its numbers around 1.
assert results[torch.bfloat16] == (1, 1)
assert abs(results[torch.float32][0] - 2) < 1e-3
assert abs(results[torch.float32][1] - 0.999**1000) < 1e-3
assert round(0.999**1000, 3) == 0.368
one = torch.tensor(1.0, dtype=torch.bfloat16)
above, below = (torch.nextafter(one, torch.tensor(limit, dtype=torch.bfloat16)) for limit in (2.0, 0.0))
assert (round(above.item(), 4), round(below.item(), 4)) == (1.0078, 0.9961)
assert min(above.item() - 1, 1 - below.item()) / 2 > 0.001

# %% [markdown]
# The weight should become 2 and the state $0.999^{1000} = 0.368$. In `bfloat16` both stay at 1. A `bfloat16` has 8
# significant bits. The next number above 1 is 1.0078, the next below is 0.9961, and a change that is smaller than half of
# the distance is rounded away, a thousand times. In 32 bits the changes add up.


# %% exercise="training_memory_bytes" points=4
def training_memory_bytes(parameters: int, optimizer: str, precision: str) -> int:
    """Bytes of the model states: weights, gradients and optimizer states.

    parameters: how many numbers the model learns.
    optimizer: "sgd", "momentum" or "adam", as in the table above.
    precision: "fp32": 4 bytes for each number. "bf16": 2 bytes for each. "mixed": as in the text above;
        every optimizer, "sgd" too, has the second copy of the weights.
    Returns an int. Raises ValueError for any other optimizer or precision.
    """
    ### BEGIN SOLUTION
    states = {"sgd": 0, "momentum": 1, "adam": 2}
    widths = {"fp32": (4, 4, 0), "bf16": (2, 2, 0), "mixed": (2, 4, 4)}  # weight, state, copy of a weight
    if optimizer not in states:
        raise ValueError(f"unknown optimizer {optimizer!r}; known are {', '.join(states)}")
    if precision not in widths:
        raise ValueError(f"unknown precision {precision!r}; known are {', '.join(widths)}")
    weight, state, copy = widths[precision]
    return parameters * (weight + weight + copy + states[optimizer] * state)
    ### END SOLUTION


# %% [markdown]
# The third prediction: 7.5 billion parameters.

# %% demo=true
# %%needs training_memory_bytes
optimizers, precisions = ("sgd", "momentum", "adam"), ("fp32", "mixed", "bf16")
for precision in precisions:
    taken = [training_memory_bytes(7_500_000_000, name, precision) / 1e9 for name in optimizers]
    print(f"{precision:6}", ", ".join(f"{name} {amount:.0f} GB" for name, amount in zip(optimizers, taken)))

# %% [markdown]
# With Adam it is 120 GB, in mixed precision as in 32 bits: mixed precision saves no memory for the model states. It makes
# the training faster, and it makes the activations smaller, though not by half: some of them stay in 32 bits. (With this
# unit's small network and `torch.autocast`, seven tenths are left.) Section 3.1 of the ZeRO paper begins with such a count, and unit 09 will
# share out the 16 bytes among the workers.
#
# **Question for the sliders:** how large a model can train with Adam, in mixed precision, on a device of 80 GB? How much
# larger may it be with momentum and everything in 16 bits?


# %% demo=true jupyter={"source_hidden": true}
# %%needs training_memory_bytes
from course_lib.figures.plots import bar_figure
from course_lib.figures.style import COLOURS
from course_lib.notebook.widgets import Slider, explore


def model_states(billions: float, device_gb: int):
    """Model states for nine choices, against the device's memory."""
    count = int(billions * 1e9)
    gigabytes = {
        precision: [training_memory_bytes(count, name, precision) / 1e9 for name in optimizers]
        for precision in precisions
    }
    fits = sum(value <= device_gb for values in gigabytes.values() for value in values)
    figure = bar_figure(
        gigabytes,
        names=optimizers,
        y="model states (GB)",
        title=f"{billions:g} billion parameters: {fits} of 9 choices fit into {device_gb} GB",
        alt=f"Bars of the gigabytes that model states take with {billions:g} billion parameters, from "
        f"{gigabytes['bf16'][0]:g} to {gigabytes['mixed'][2]:g}, and a line at {device_gb} GB, the device's memory.",
    )
    figure.axes[0].axhline(device_gb, color=COLOURS["black"], linestyle="--")
    figure.axes[0].annotate(f"device, {device_gb} GB", (-0.45, device_gb), va="bottom")
    return figure


explore(
    model_states,
    billions=Slider([1, 1.5, 3, 5, 7.5, 10, 13, 20, 70, 175], 7.5, "parameters (billions)"),
    device_gb=Slider([16, 24, 40, 80, 141, 192], 80, "device memory (GB)"),
)

# %% demo=true jupyter={"source_hidden": true}
# %%holds training_memory_bytes
# The numbers in the text around this cell.
assert training_memory_bytes(7_500_000_000, "adam", "mixed") == 120e9
assert training_memory_bytes(7_500_000_000, "adam", "fp32") == 120e9
assert training_memory_bytes(5_000_000_000, "adam", "mixed") == 80e9
assert training_memory_bytes(13_000_000_000, "momentum", "bf16") < 80e9
assert training_memory_bytes(14_000_000_000, "momentum", "bf16") > 80e9
guesses.measured(gigabytes_of_model_states=training_memory_bytes(7_500_000_000, "adam", "mixed") / 1e9)

# %% [markdown]
# Five billion parameters, at 16 bytes each; thirteen billion at 6 bytes. And no activation is counted yet. Those can be
# counted too: PyTorch tells which tensors a forward pass keeps.

# %% demo=true
# %%needs training_memory_bytes
from course_lib.training.activation_memory import activation_bytes

counts = [1, 4, 16, 64, 256, 1024]
kept = [activation_bytes(model, random_batch(count)[0]) / 1e6 for count in counts]
states = training_memory_bytes(parameter_count(model), "adam", "fp32") / 1e6
crossing = round(states / (kept[-1] / counts[-1]))
line_figure(
    {"activations": (counts, kept), "model states, Adam, fp32": (counts, [states] * len(counts))},
    x="batch size (samples)",
    y="memory (MB)",
    log_x=True,
    log_y=True,
    at_points=True,
    title=f"activations outweigh the model states from about {crossing} samples on",
    alt=f"Activations against batch size, both logarithmic: a straight line from {kept[0]:.2f} to {kept[-1]:.0f} MB "
    f"that crosses the model states, {states:.2f} MB, at about {crossing} samples.",
)

# %% demo=true jupyter={"source_hidden": true}
# %%holds training_memory_bytes
# Activations are below the model states with one sample, and above them with 1,024.
assert kept[0] < states < kept[-1]
# And what mixed precision makes of them.
with torch.autocast(device.type, dtype=torch.bfloat16):
    mixed = activation_bytes(model, random_batch(64)[0])
if dataset == "digits":
    assert round(mixed / activation_bytes(model, random_batch(64)[0]), 1) == 0.7

# %% [markdown]
# In this convolutional network, as in most, activations soon outweigh everything else; that is where `accumulate_gradients`
# helps. In a large language model it can be the other way round: even with one sample at a time the model states alone do
# not fit. No micro-batch is small enough then, and the model states have to be spread over devices.
#
# ## 7 Now on real processes
#
# The simplest use of several processes sends no data at all: trainings that differ in one setting. `train_once` below is
# an ordinary function; `launch` runs it in two processes, each with a learning rate of its own. A process that has loaded its
# data waits for the other one (`dist.barrier()` returns when all have called it), so that both train at the same time.
# `new_batches` makes the two loaders, `train_epoch` calls your `train_step` on each batch, and `span` names a part of the
# timeline.


# %% demo=true
# %%needs train_step evaluate
from course_lib.training.device import rank_device
from course_lib.training.single_device import train_epoch


def train_once(learning_rate: float) -> tuple[float, float]:
    """Three epochs with this learning rate: the test accuracy, and the samples a second while training."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = load(dataset)
    device = rank_device(best_device())
    train_batches, test_batches = new_batches(data, batch_size, device)
    model = SmallCNN(channels, class_count, size, dropout=0.25).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    dist.barrier()
    started = time.perf_counter()
    for _ in range(3):
        with span("epoch"):
            train_epoch(model, train_batches, optimizer, train_step)
    rate = 3 * len(data.train) / (time.perf_counter() - started)
    with span("validate"):
        return evaluate(model, test_batches)[1], rate


real = {"on": "processes", "backend": "gloo", "timeout": 600}
alone = launch(train_once, per_rank([3e-3]), ranks=1, **real)
both = launch(train_once, per_rank([1e-3, 3e-3]), ranks=2, **real)
for learning_rate, (accuracy, rate) in zip([1e-3, 3e-3], both.results):
    print(f"learning rate {learning_rate:g}: accuracy {accuracy:.1%}, {rate:,.0f} samples a second")
together = sum(rate for _, rate in both.results)
print(f"alone {alone.results[0][1]:,.0f} samples a second, two together {together:,.0f}")
print(f"bytes sent: {both.traffic.sent}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds train_step evaluate
# Trainings that differ in one setting send each other nothing.
assert both.traffic.sent == 0

# %% demo=true
# %%needs train_step evaluate
both.timeline(title="two trainings that know nothing of each other")

# %% [markdown]
# Two processes on two free cores do twice the work in the same time: nothing is serial, nothing is sent. If yours do less,
# they share something after all: cores, memory bandwidth, or a GPU. And now there are two models, not one that was trained
# twice as fast. For that the processes have to communicate, which is unit 02.
#
# This works on one GPU too, as long as the trainings fit into its memory together: with `backend="gloo"` ranks share the GPUs that
# there are. Without it, ranks that have no GPU of their own compute on CPUs.

# %% [markdown]
"""
## 8 Now on nodes

A training on one device is one task on one node. Papermill runs this notebook from top to bottom, with other parameters,
and writes what came out to a new notebook; progress bars become plain lines. So the notebook itself can be the batch job:

```bash
#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --time=00:30:00

srun papermill 01_single_gpu.ipynb fashion.ipynb -p dataset fashion_mnist -p epochs 10
```

Sites differ in how they give out GPUs: some want `--gres=gpu:1`, some allow neither and always give a whole node. With
`--array=0-3` Slurm starts four such jobs, independent of each other, and tells each its number in `SLURM_ARRAY_TASK_ID`:
section 7 on four nodes.

Compute nodes often have no network. Get the data before, on a login node:
`python -c "from course_lib.data import load; load('fashion_mnist', download=True)"`.

## 9 Where it comes from

- **Data.** Digits: E. Alpaydin, C. Kaynak, *Optical recognition of handwritten digits*, UCI 1998. Fashion-MNIST: H. Xiao,
  K. Rasul, R. Vollgraf, arXiv:1708.07747. CIFAR-10: A. Krizhevsky, *Learning multiple layers of features from tiny
  images*, 2009.
- **Optimizer.** I. Loshchilov, F. Hutter, *Decoupled weight decay regularization* (AdamW), arXiv:1711.05101, after
  D. Kingma, J. Ba, *Adam*, arXiv:1412.6980.
- **Mixed precision.** P. Micikevicius et al., arXiv:1710.03740: 16-bit arithmetic with a 32-bit copy of the weights.
- **16 bytes a parameter.** S. Rajbhandari, J. Rasley, O. Ruwase, Y. He, *ZeRO: memory optimizations toward training trillion
  parameter models*, arXiv:1910.02054, section 3.1. Its Figure 1 has 7.5 billion parameters: 120 GB on each device, and
  31.4, 16.6 and 1.9 GB when 64 devices share optimizer states, gradients and weights, step by step.
- **Activations.** V. Korthikanti et al., arXiv:2205.05198: a transformer layer keeps $sbh (34 + 5as/h)$ bytes for a
  sequence of $s$ tokens, micro-batches of $b$, hidden size $h$ and $a$ heads.

<details><summary>Other fifteen steps</summary>

A lecture of NVIDIA's counts fifteen steps too, but different ones: all of them are steps of a single batch, and they tell
where the data are and who has something to do. For a model of three layers:

| Step | What happens | Where |
|---|---|---|
| 1, 2 | read a batch, transport it to the host | disk to the host's memory |
| 3, 4 | preprocess it, put it into a queue, where finished batches wait | host, often in processes of its own |
| 5 | transport it to the device | host to device |
| 6, 7, 8 | activations of layer one, of layer two, output | device, forward |
| 9 | loss | device |
| 10, 11, 12 | gradients of layer three, of layer two, of layer one | device, backward |
| 13, 14 | compute the optimizer's step, update the weights | device |
| 15 | return control | to the program, which asks for the next batch |

They divide what happens on the device more finely than the picture does, and leave out what happens once an epoch.

</details>

## 10 What goes wrong in practice

- **The loss does not fall.** Try twenty steps on one batch (section 1). Softmax before `cross_entropy`, gradients that are
  never cleared, and labels in another order than images are the usual reasons.
- **Memory grows from step to step.** Somebody keeps losses with their history. Look for `total += loss`.
- **Accuracy in training mode.** `evaluate` was called without `eval()`, or left the model in it.
- **The GPU is idle half of the time.** The batches do not come fast enough. Measure steps 3 to 5 alone; give the
  `DataLoader` workers (`num_workers=4`), pin memory, and cache what is decoded again and again.
- **A step takes no time at all.** Nothing has waited for the device (section 5).
- **`loss.item()` or `print(loss)` in every step.** Each one waits for the device. Add up on the device, and read once in a while.
- **Out of memory in the first update, or in the second step's forward.** Adam makes its states in the first update (section
  6). Before that they took no memory.
- **Out of memory after an exception in a notebook.** The traceback keeps the frames, and they keep the tensors. Restart the kernel.
- **NaN in half precision.** `float16` ends at 65,504, and small gradients become zero: it needs loss scaling (`torch.amp.GradScaler`).
  `bfloat16` has the range of `float32`, and does not.
- **Other numbers in each run.** Seed `torch.manual_seed`; the same seed on other hardware, or with another number of
  threads, may still differ in the last digits.
"""

# %% [markdown]
# What you predicted, beside what was measured:

# %% demo=true
guesses

# %% demo=true
progress()
