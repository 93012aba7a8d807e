"""Right answers to unit 01, written in other ways than the solutions."""

import io
import itertools
import time
from typing import NamedTuple

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


@right("train_step")
def loss_in_double_precision(model, inputs, targets, optimizer):
    """A closure, as optimizers take one; the loss is a scalar of more digits."""

    def closure():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs).double(), targets.to(inputs.device))
        loss.backward()
        return loss

    return optimizer.step(closure).detach()


@right("train_step")
def with_a_table_on_the_device(model, inputs, targets, optimizer):
    """What is made here is made where the batch is, but for an index."""
    logits = model(inputs)
    wanted = torch.eye(logits.shape[1], device=inputs.device)[targets]
    order = torch.arange(len(targets)).flip(0)
    loss = functional.cross_entropy(logits[order], wanted[order])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


@right("train_step")
def by_functions(model, inputs, targets, optimizer):
    """The gradient is a function's, and nothing is in .grad until it is put there. Mixed precision is off."""

    def loss_of(parameters):
        with torch.autocast(inputs.device.type, enabled=inputs.device.type == "cuda"):
            logits = torch.func.functional_call(model, parameters, (inputs,))
            return functional.cross_entropy(logits, targets)

    parameters = dict(model.named_parameters())
    fixed = {name: parameter.detach() for name, parameter in parameters.items()}
    gradients, loss = torch.func.grad_and_value(loss_of)(fixed)
    for name, parameter in parameters.items():
        parameter.grad = gradients[name]
    optimizer.step()
    return loss


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


class Evaluated(NamedTuple):
    """A pair with names."""

    loss: float
    accuracy: float


@right("evaluate")
def with_names(model, loader):
    return Evaluated(*weighted_means(model, loader))


@right("evaluate")
def with_frozen_parameters(model, loader):
    """Where nothing requires a gradient there is no graph; afterwards all is as before."""
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    modes = [(module, module.training) for module in model.modules()]
    model.eval().requires_grad_(False)
    batches = [(model(inputs), targets) for inputs, targets in loader]
    for parameter, trained in before:
        parameter.requires_grad_(trained)
    for module, mode in modes:
        module.training = mode
    logits, targets = map(torch.cat, zip(*batches, strict=True))
    hits = (logits.argmax(1) == targets).double().mean()
    return functional.cross_entropy(logits, targets).item(), hits.item()


@right("evaluate")
def sums_where_the_model_is(model, loader):
    was_training = model.training
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64, device=next(model.parameters()).device)
    samples = torch.zeros(())
    with torch.no_grad():
        for inputs, targets in loader:
            logits = model(inputs)
            losses = functional.cross_entropy(logits, targets, reduction="none")
            sums += torch.stack([losses, logits.argmax(1) == targets]).sum(1)
            samples += len(targets)
    model.train(was_training)
    loss, accuracy = (sums.cpu() / samples).tolist()
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


@right("fit")
def with_batches_made_ready(model, train_loader, validation_loader, optimizer, epochs, device):
    """Numbers get their types on the host; as_tensor moves them."""

    def moved(loader):
        for inputs, targets in loader:
            yield torch.as_tensor(inputs.float(), device=device), targets.long().to(device)

    model.to(device)
    return [
        _one_epoch(model, moved(train_loader), moved(validation_loader), optimizer) for _ in range(epochs)
    ]


@right("fit")
def where_the_model_is(model, train_loader, validation_loader, optimizer, epochs, device):
    """Asks the model for its device once it has been moved, and moves what is not there yet."""
    if next(model.parameters()).device != device:
        model.to(device)
    place = next(model.parameters()).device

    def moved(loader):
        for batch in loader:
            yield tuple(each if each.device == place else each.to(place) for each in batch)

    history = []
    for _ in range(epochs):
        model.train()
        sums = torch.zeros(2, device=place)
        for inputs, targets in moved(train_loader):
            loss = with_a_loss_module(model, inputs, targets, optimizer)
            sums += torch.stack([loss * len(targets), torch.tensor(float(len(targets)), device=place)])
        history.append(((sums[0] / sums[1]).item(), *as_inference(model, moved(validation_loader))))
    return history


@right("fit")
def losses_brought_home_at_the_end(model, train_loader, validation_loader, optimizer, epochs, device):
    """One copy of all losses to the host, which has their weights."""
    model.to(device)
    history = []
    for _ in range(epochs):
        model.train()
        losses, sizes = [], []
        for inputs, targets in _Moved(train_loader, device):
            losses.append(with_a_loss_module(model, inputs, targets, optimizer))
            sizes.append(len(targets))
        weights = torch.tensor(sizes) / sum(sizes)
        loss = torch.dot(torch.stack(losses).cpu(), weights).item()
        history.append((loss, *as_inference(model, _Moved(validation_loader, device))))
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


@right("fit")
def to_where_another_tensor_is(model, train_loader, validation_loader, optimizer, epochs, device):
    """x.to(y) moves x to y's device."""
    model.to(device)
    total = torch.zeros((), device=device)

    def moved(loader):
        return ((inputs.to(total), targets.to(total.device)) for inputs, targets in loader)

    history = []
    for _ in range(epochs):
        model.train()
        total.zero_()
        samples = 0
        for inputs, targets in moved(train_loader):
            total += with_a_loss_module(model, inputs, targets, optimizer) * len(targets)
            samples += len(targets)
        history.append((total.item() / samples, *with_names(model, moved(validation_loader))))
    return history


@right("fit")
def with_batches_turned_on_the_host(model, train_loader, validation_loader, optimizer, epochs, device):
    """A batch is worked on where it is, as augmentation does; there it may be asked for its numbers."""

    def moved(loader):
        for inputs, targets in loader:
            turned = torch.arange(len(targets)).flip(0)
            assert int(targets.min()) >= 0
            buffer = torch.empty_like(inputs, device=device)
            yield (
                buffer.copy_(inputs[turned] + torch.zeros(1)),
                targets[turned].type(torch.LongTensor).to(device),
            )

    model.to(device)
    return [
        _one_epoch(model, moved(train_loader), moved(validation_loader), optimizer) for _ in range(epochs)
    ]


@right("fit")
def with_a_default_device(model, train_loader, validation_loader, optimizer, epochs, device):
    """What is made without a word is made on the device, from now on and everywhere."""
    torch.set_default_device(device)
    model.to(device)
    history = []
    for _ in range(epochs):
        model.train()
        total, samples = torch.zeros(()), 0
        for inputs, targets in _Moved(train_loader, device):
            total += with_a_loss_module(model, inputs, targets, optimizer) * len(targets)
            samples += len(targets)
        history.append((total.item() / samples, *as_inference(model, _Moved(validation_loader, device))))
    return history


@right("fit")
def with_a_checkpoint_after_each_epoch(model, train_loader, validation_loader, optimizer, epochs, device):
    """Written to memory, and read again to where the model is."""
    model.to(device)
    history = []
    for _ in range(epochs):
        history.append(
            _one_epoch(model, _Moved(train_loader, device), _Moved(validation_loader, device), optimizer)
        )
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        model.load_state_dict(torch.load(file, map_location=device))
    return history


# ------------------------------------------------------------------------------------ accumulate_gradients


@right("fit")
def with_one_batch_for_validation(model, train_loader, validation_loader, optimizer, epochs, device):
    """Puts the validation set together on the host, and moves it at once."""
    model.to(device)
    history = []
    for _ in range(epochs):
        model.train()
        total, samples = 0.0, 0
        for inputs, targets in train_loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(targets)
            samples += len(targets)
        model.eval()
        inputs, targets = (torch.cat(parts).to(device) for parts in zip(*validation_loader, strict=True))
        with torch.no_grad():
            logits = model(inputs)
        accuracy = (logits.argmax(1) == targets).double().mean().item()
        lost = functional.cross_entropy(logits, targets).item()
        history.append((total.item() / samples, lost, accuracy))
    return history


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


@right("accumulate_gradients")
def last_one_first(model, micro_batches, loss_fn):
    n, losses = sum(len(targets) for _, targets in micro_batches), []
    for inputs, targets in reversed(micro_batches):
        losses.append(loss_fn(model(inputs), targets) * len(targets) / n)
        losses[-1].backward()
    return torch.stack(losses).sum().detach()


@right("accumulate_gradients")
def weights_in_a_tensor_on_the_host(model, micro_batches, loss_fn):
    """The sizes are the program's own numbers: nothing waits for the device."""
    sizes = torch.tensor([len(targets) for _, targets in micro_batches])
    weights, total = (sizes / sizes.sum()).tolist(), 0.0
    for (inputs, targets), weight in zip(micro_batches, weights, strict=True):
        loss = weight * loss_fn(model(inputs), targets)
        loss.backward()
        total = total + loss.detach()
    return total


@right("accumulate_gradients")
def sums_in_double_precision(model, micro_batches, loss_fn):
    """The loss has more digits than the model's numbers, and is on their device."""
    n = sum(len(inputs) for inputs, _ in micro_batches)
    total = torch.zeros((), dtype=torch.float64).to(micro_batches[0][0].device)
    for inputs, targets in micro_batches:
        loss = loss_fn(model(inputs), targets) * len(inputs) / n
        loss.backward()
        total += loss.detach()
    return total


@right("accumulate_gradients")
def with_hooks(model, micro_batches, loss_fn):
    """Hooks weight the gradients of a micro-batch, and are taken away at the end."""
    n, total, weight = sum(len(targets) for _, targets in micro_batches), 0.0, [1.0]
    hooks = [p.register_hook(lambda gradient: weight[0] * gradient) for p in model.parameters()]
    for inputs, targets in micro_batches:
        weight[0] = len(inputs) / n
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        total += weight[0] * loss.detach()
    for hook in hooks:
        hook.remove()
    return total


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
