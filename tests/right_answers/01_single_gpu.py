"""Right answers to unit 01, written in other ways than the solutions."""

import itertools
import time

import torch
from torch import nn
from torch.nn import functional

from tests.answers import right

# ---------------------------------------------------------------------------------------------- train_step


@right("train_step")
def with_a_loss_module(model, inputs, targets, optimizer):
    loss = nn.CrossEntropyLoss()(model(inputs), targets)
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    return loss.detach().clone()


# ------------------------------------------------------------------------------------------------ evaluate


@right("evaluate")
@torch.inference_mode()
def as_inference(model, loader):
    was_training = model.training
    model.eval()
    losses, hits = [], []
    for inputs, targets in loader:
        logits = model(inputs)
        losses += functional.cross_entropy(logits, targets, reduction="none").tolist()
        hits += (logits.argmax(1) == targets).tolist()
    model.train(was_training)
    return sum(losses) / len(losses), sum(hits) / len(hits)


@right("evaluate")
def weighted_means(model, loader):
    was_training = model.training
    try:
        model.train(False)
        batches = list(loader)
        total = sum(len(targets) for _, targets in batches)
        loss = accuracy = 0.0
        for inputs, targets in batches:
            with torch.no_grad():
                logits = model(inputs)
            share = targets.shape[0] / total
            loss += functional.cross_entropy(logits, targets).item() * share
            accuracy += (logits.max(dim=1).indices == targets).double().mean().item() * share
    finally:
        model.train(was_training)
    return loss, accuracy


# ----------------------------------------------------------------------------------------------------- fit


@right("fit")
def with_lists_of_tensors(model, train_loader, validation_loader, optimizer, epochs, device):
    """Keeps each step's loss as a tensor; one number at the end of the epoch."""
    model = model.to(device)
    history = []
    for _ in range(epochs):
        model.train()
        sums, counts = [], []
        for batch in train_loader:
            inputs, targets = (tensor.to(device, non_blocking=True) for tensor in batch)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), targets, reduction="sum")
            (loss / len(targets)).backward()
            optimizer.step()
            sums.append(loss.detach())
            counts.append(len(targets))
        train_loss = torch.stack(sums).sum().item() / sum(counts)
        pairs = ((inputs.to(device), targets.to(device)) for inputs, targets in validation_loader)
        history.append((train_loss, *as_inference(model, pairs)))
    return history


class _Moved:
    """A loader whose batches come on the device."""

    def __init__(self, loader, device):
        self.loader, self.device = loader, device

    def __iter__(self):
        for batch in self.loader:
            yield [tensor.to(device=self.device) for tensor in batch]


@right("fit")
def with_loaders_that_move(model, train_loader, validation_loader, optimizer, epochs, device):
    """Both loaders are wrapped once."""
    model.to(device)
    train, validation = _Moved(train_loader, device), _Moved(validation_loader, device)
    return [_one_epoch(model, train, validation, optimizer) for _ in range(epochs)]


def _one_epoch(model, train, validation, optimizer):
    model.train(True)
    seen, mean = 0, torch.tensor(0.0)  # on the host, which the first sum leaves
    for inputs, targets in train:
        seen += len(targets)
        mean = mean + (with_a_loss_module(model, inputs, targets, optimizer) - mean) * (len(targets) / seen)
    return (float(mean), *as_inference(model, validation))


# ------------------------------------------------------------------------------------ accumulate_gradients


@right("accumulate_gradients")
def sums_then_one_division(model, micro_batches, loss_fn):
    n, total = 0, 0.0
    for inputs, targets in micro_batches:
        size = inputs.size(0)
        loss = loss_fn(model(inputs), targets) * size
        loss.backward()
        total += loss.detach()
        n += size
    for parameter in model.parameters():
        parameter.grad /= n
    return total / n


# -------------------------------------------------------------------------------------- measure_throughput


@right("measure_throughput")
def one_loop(step, batch_size, warmup, steps, synchronize):
    for number in itertools.count():
        if number == warmup:
            synchronize()
            start = time.monotonic()
        if number == warmup + steps:
            break
        step()
    synchronize()
    return steps * batch_size / (time.monotonic() - start)


@right("measure_throughput")
def in_nanoseconds(step, batch_size, warmup, steps, synchronize):
    def run(times):
        for _ in itertools.repeat(None, times):
            step()
        synchronize()
        return time.perf_counter_ns()

    return -1e9 * batch_size * steps / (run(warmup) - run(steps))


# ----------------------------------------------------------------------------------- training_memory_bytes


class Unknown(ValueError):
    """An optimizer or a precision of another name."""


@right("training_memory_bytes")
def as_a_table(parameters, optimizer, precision):
    table = {
        "fp32": {"sgd": 8, "momentum": 12, "adam": 16},
        "bf16": {"sgd": 4, "momentum": 6, "adam": 8},
        "mixed": {"sgd": 8, "momentum": 12, "adam": 16},
    }
    if precision not in table or optimizer not in table[precision]:
        raise Unknown(f"{optimizer}, {precision}")
    return parameters * table[precision][optimizer]


@right("training_memory_bytes")
def term_by_term(parameters, optimizer, precision):
    try:
        moments = ["sgd", "momentum", "adam"].index(optimizer)
        narrow, wide, copies = {"fp32": (4, 4, 0), "bf16": (2, 2, 0), "mixed": (2, 4, 1)}[precision]
    except KeyError:
        raise ValueError(precision) from None
    return 2 * narrow * parameters + (copies + moments) * wide * parameters
