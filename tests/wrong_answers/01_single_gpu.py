"""Mistakes that people make in unit 01."""

import time

import torch
from torch.nn import functional

from tests.answers import instead, wrong

# ---------------------------------------------------------------------------------------------- train_step


@wrong("train_step", fails="one update")
def softmax_twice(model, inputs, targets, optimizer):
    """cross_entropy takes logits, not probabilities."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs).softmax(1), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


@wrong("train_step", fails="one update")
def sum_instead_of_mean(model, inputs, targets, optimizer):
    """The step then grows with the batch."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets, reduction="sum")
    loss.backward()
    optimizer.step()
    return loss.detach()


@wrong("train_step", fails="loss")
def waits_for_the_device(model, inputs, targets, optimizer):
    """item() copies the loss to the host, so that every step waits for the device."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item()


@wrong("train_step", fails="the model's mode")
def always_in_training_mode(model, inputs, targets, optimizer):
    """Whoever has frozen the batch norms by model.eval() did so on purpose."""
    model.train()
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


@wrong("train_step", fails="gradients start at zero")
def never_clears(model, inputs, targets, optimizer):
    """Every step goes along the sum of all gradients so far."""
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


# ------------------------------------------------------------------------------------------------ evaluate


def _evaluated(model, loader):
    """Loss and accuracy in total, and how many samples: right, for what the wrong ones leave undone."""
    loss, correct, total = 0.0, 0, 0
    for inputs, targets in loader:
        logits = model(inputs)
        loss += functional.cross_entropy(logits, targets, reduction="sum").item()
        correct += int((logits.argmax(1) == targets).sum())
        total += len(targets)
    return loss, correct, total


@wrong("evaluate", fails="loss and accuracy")
def percent(model, loader):
    """97.2 instead of 0.972."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        loss, correct, total = _evaluated(model, loader)
    model.train(was_training)
    return loss / total, 100 * correct / total


@wrong("evaluate", fails="uneven last batch")
def mean_of_batch_means(model, loader):
    """A sample of a short last batch counts for more than the others."""
    was_training = model.training
    model.eval()
    losses, accuracies = [], []
    with torch.no_grad():
        for inputs, targets in loader:
            logits = model(inputs)
            losses.append(float(functional.cross_entropy(logits, targets)))
            accuracies.append(float((logits.argmax(1) == targets).float().mean()))
    model.train(was_training)
    return sum(losses) / len(losses), sum(accuracies) / len(accuracies)


@wrong("evaluate", fails="evaluation mode")
def with_dropout(model, loader):
    """Measures a model that is still dropping units."""
    with torch.no_grad():
        loss, correct, total = _evaluated(model, loader)
    return loss / total, correct / total


@wrong("evaluate", fails="mode restored")
def leaves_it_in_evaluation_mode(model, loader):
    """From the second epoch on it trains without dropout."""
    model.eval()
    with torch.no_grad():
        loss, correct, total = _evaluated(model, loader)
    return loss / total, correct / total


@wrong("evaluate", fails="no graph")
def records_graphs(model, loader):
    """Keeps every activation for a backward pass that never comes."""
    was_training = model.training
    model.eval()
    loss, correct, total = _evaluated(model, loader)
    model.train(was_training)
    return loss / total, correct / total


# ----------------------------------------------------------------------------------------------------- fit


@instead("fit", ("in train_loader:", "in [*train_loader, *validation_loader]:"), fails="one epoch")
def trains_on_the_validation_set():
    """One loop over all that there is."""


@instead(
    "fit",
    ("    history = []", "    history, train_loader = [], list(train_loader)"),
    fails="every epoch anew",
)
def keeps_the_batches_of_the_first_epoch():
    """A list of batches has one order for ever, however the loader shuffles."""


@instead("fit", ("model.train()", "pass"), fails="modes")
def in_the_mode_that_it_finds():
    """Trains a model that comes in evaluation mode without dropout."""


@instead("fit", ("model.to(device)", "pass"), fails="on the device")
def forgets_the_model():
    """Moves the batches only."""


# ------------------------------------------------------------------------------------ accumulate_gradients


def _samples(micro_batches):
    return sum(len(inputs) for inputs, _ in micro_batches)


@wrong("accumulate_gradients", fails="equal micro-batches")
def sum_of_means(model, micro_batches, loss_fn):
    """Forgets to divide: k micro-batches give k times the gradient."""
    total = 0.0
    for inputs, targets in micro_batches:
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        total += loss.detach()
    return total / len(micro_batches)


@wrong("accumulate_gradients", fails="equal micro-batches")
def clears_between_micro_batches(model, micro_batches, loss_fn):
    """Only the last micro-batch's gradient is left."""
    total, n = 0.0, _samples(micro_batches)
    for inputs, targets in micro_batches:
        model.zero_grad()
        loss = loss_fn(model(inputs), targets) * len(inputs) / n
        loss.backward()
        total += loss.detach()
    return total


@wrong("accumulate_gradients", fails="uneven micro-batches")
def divides_by_micro_batches(model, micro_batches, loss_fn):
    """The usual recipe, right only where all micro-batches are of one size."""
    total = 0.0
    for inputs, targets in micro_batches:
        loss = loss_fn(model(inputs), targets) / len(micro_batches)
        loss.backward()
        total += loss.detach()
    return total


@wrong("accumulate_gradients", fails="loss of the full batch")
def loss_of_the_last(model, micro_batches, loss_fn):
    """The right gradients, with the last micro-batch's loss."""
    n = _samples(micro_batches)
    for inputs, targets in micro_batches:
        loss = loss_fn(model(inputs), targets)
        (loss * len(inputs) / n).backward()
    return loss.detach()


@wrong("accumulate_gradients", fails="one graph at a time")
def one_backward_at_the_end(model, micro_batches, loss_fn):
    """All graphs are alive until the single backward."""
    n = _samples(micro_batches)
    loss = sum(loss_fn(model(inputs), targets) * len(inputs) / n for inputs, targets in micro_batches)
    loss.backward()
    return loss.detach()


# -------------------------------------------------------------------------------------- measure_throughput


@wrong("measure_throughput", fails="warm-up and timed steps")
def no_warmup(step, batch_size, warmup, steps, synchronize):
    """The first, slow steps are timed."""
    synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize()
    return batch_size * steps / (time.perf_counter() - start)


@wrong("measure_throughput", fails="waits before the clock starts")
def only_at_the_end(step, batch_size, warmup, steps, synchronize):
    """What is left of the warm-up is timed too."""
    for _ in range(warmup):
        step()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize()
    return batch_size * steps / (time.perf_counter() - start)


@wrong("measure_throughput", fails="waits before the clock stops")
def only_at_the_start(step, batch_size, warmup, steps, synchronize):
    """Stops the clock while the device works."""
    for _ in range(warmup):
        step()
    synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return batch_size * steps / (time.perf_counter() - start)


@wrong("measure_throughput", fails="waits nowhere else")
def after_every_step(step, batch_size, warmup, steps, synchronize):
    """Keeps the device from ever having the next step ready."""
    for _ in range(warmup):
        step()
    synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
        synchronize()
    return batch_size * steps / (time.perf_counter() - start)


@wrong("measure_throughput", fails="samples a second")
def with_the_warmup(step, batch_size, warmup, steps, synchronize):
    """Divides all samples, those of the warm-up too, by the seconds of the measured steps."""
    for _ in range(warmup):
        step()
    synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize()
    return batch_size * (warmup + steps) / (time.perf_counter() - start)


# ----------------------------------------------------------------------------------- training_memory_bytes

STATES = {"sgd": 0, "momentum": 1, "adam": 2}
WIDTH = {"fp32": 4, "bf16": 2, "mixed": 2}


def _check(optimizer, precision):
    if optimizer not in STATES or precision not in WIDTH:
        raise ValueError((optimizer, precision))


def _master(precision):
    return 4 if precision == "mixed" else 0


def _state_width(precision):
    return 2 if precision == "bf16" else 4


@wrong("training_memory_bytes", fails="full precision")
def forgets_gradients(parameters, optimizer, precision):
    """Weights and optimizer states."""
    _check(optimizer, precision)
    each = WIDTH[precision] + _master(precision) + STATES[optimizer] * _state_width(precision)
    return parameters * each


@wrong("training_memory_bytes", fails="half precision")
def states_always_full(parameters, optimizer, precision):
    """With everything in bf16 the moments are bf16 too."""
    _check(optimizer, precision)
    return parameters * (2 * WIDTH[precision] + _master(precision) + STATES[optimizer] * 4)


@wrong("training_memory_bytes", fails="mixed precision")
def no_master_weights(parameters, optimizer, precision):
    """The optimizer updates a copy of the weights in full precision."""
    _check(optimizer, precision)
    return parameters * (2 * WIDTH[precision] + STATES[optimizer] * _state_width(precision))


@wrong("training_memory_bytes", fails="mixed precision")
def gradients_in_full(parameters, optimizer, precision):
    """In this convention gradients have the weights' 2 bytes."""
    _check(optimizer, precision)
    gradient = 2 if precision == "bf16" else 4
    states = STATES[optimizer] * _state_width(precision)
    return parameters * (WIDTH[precision] + gradient + _master(precision) + states)


@wrong("training_memory_bytes", fails="unknown names")
def unknown_is_sgd(parameters, optimizer, precision):
    """An optimizer that nobody has heard of keeps nothing."""
    states = STATES.get(optimizer, 0) * _state_width(precision)
    return parameters * (2 * WIDTH.get(precision, 4) + _master(precision) + states)


@instead(
    "fit", ("optimizer) * len(targets)", "optimizer).item() * len(targets)"), fails="waits once an epoch"
)
def a_number_in_every_step():
    """item() waits for the device in every step."""
