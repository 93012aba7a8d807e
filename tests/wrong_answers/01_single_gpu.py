"""Mistakes that people make in unit 01."""

import time

import torch
from torch.nn import functional

from tests.answers import wrong

# ---------------------------------------------------------------------------------------------- train_step


@wrong("train_step", fails="loss")
def softmax_twice(model, inputs, targets, optimizer):
    """cross_entropy takes logits, not probabilities."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs).softmax(1), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


@wrong("train_step", fails="loss")
def sum_instead_of_mean(model, inputs, targets, optimizer):
    """The step then grows with the batch."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets, reduction="sum")
    loss.backward()
    optimizer.step()
    return loss.detach()


@wrong("train_step", fails="loss")
def logits_for_log_probabilities(model, inputs, targets, optimizer):
    """nll_loss wants log_softmax before it."""
    optimizer.zero_grad()
    loss = functional.nll_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


@wrong("train_step", fails="loss")
def loss_after_the_step(model, inputs, targets, optimizer):
    """Goes forward once more, and reports what the batch's loss has become."""
    optimizer.zero_grad()
    functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    return functional.cross_entropy(model(inputs), targets).detach()


@wrong("train_step", fails="loss")
def returns_nothing(model, inputs, targets, optimizer):
    """Trains, and tells nobody how it went."""
    optimizer.zero_grad()
    functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()


@wrong("train_step", fails="loss")
def waits_for_the_device(model, inputs, targets, optimizer):
    """item() copies the loss to the host, so that every step waits for the device."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item()


@wrong("train_step", fails="one update")
def always_in_training_mode(model, inputs, targets, optimizer):
    """Whoever has frozen the batch norms by model.eval() did so on purpose."""
    model.train()
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


@wrong("train_step", fails="one update")
def no_optimizer_step(model, inputs, targets, optimizer):
    """Gradients alone change nothing."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    return loss.detach()


@wrong("train_step", fails="one update")
def step_before_backward(model, inputs, targets, optimizer):
    """Updates with the gradients of the step before."""
    loss = functional.cross_entropy(model(inputs), targets)
    optimizer.step()
    optimizer.zero_grad()
    loss.backward()
    return loss.detach()


@wrong("train_step", fails="one update")
def clears_between_backward_and_step(model, inputs, targets, optimizer):
    """Throws the gradients away before they are used."""
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()
    return loss.detach()


@wrong("train_step", fails="one update")
def steps_twice(model, inputs, targets, optimizer):
    """One gradient, two updates."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.step()
    return loss.detach()


@wrong("train_step", fails="one update")
def in_evaluation_mode(model, inputs, targets, optimizer):
    """Trains without dropout."""
    model.eval()
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


@wrong("train_step", fails="one update")
def goes_forward_twice(model, inputs, targets, optimizer):
    """A second forward pass for the loss: twice the work, and with dropout another loss."""
    optimizer.zero_grad()
    functional.cross_entropy(model(inputs), targets).backward()
    with torch.no_grad():
        loss = functional.cross_entropy(model(inputs), targets)
    optimizer.step()
    return loss


@wrong("train_step", fails="gradients start at zero")
def never_clears(model, inputs, targets, optimizer):
    """Every step goes along the sum of all gradients so far."""
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


@wrong("train_step", fails="gradients start at zero")
def clears_afterwards_only(model, inputs, targets, optimizer):
    """Believes that the gradients are clear when it is called."""
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


@wrong("train_step", fails="no history kept")
def keeps_the_graph(model, inputs, targets, optimizer):
    """Whoever collects these losses collects the graphs of all steps."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss


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


@wrong("evaluate", fails="accuracy")
def percent(model, loader):
    """97.2 instead of 0.972."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        loss, correct, total = _evaluated(model, loader)
    model.train(was_training)
    return loss / total, 100 * correct / total


@wrong("evaluate", fails="accuracy")
def accuracy_before_loss(model, loader):
    """The pair the wrong way round."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        loss, correct, total = _evaluated(model, loader)
    model.train(was_training)
    return correct / total, loss / total


@wrong("evaluate", fails="accuracy")
def divides_by_batches(model, loader):
    """Hits per batch."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        loss, correct, total = _evaluated(model, loader)
    model.train(was_training)
    return loss / total, correct / len(loader)


@wrong("evaluate", fails="accuracy")
def last_batch_only(model, loader):
    """Overwrites instead of adding up."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for inputs, targets in loader:
            logits = model(inputs)
            loss = functional.cross_entropy(logits, targets)
            correct = (logits.argmax(1) == targets).sum()
    model.train(was_training)
    return float(loss), float(correct / len(loader.dataset))


@wrong("evaluate", fails="loss")
def sum_of_losses(model, loader):
    """A larger test set has a larger sum."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        loss, correct, total = _evaluated(model, loader)
    model.train(was_training)
    return loss, correct / total


@wrong("evaluate", fails="loss")
def sum_of_batch_means(model, loader):
    """Adds up means, and divides by nothing."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        _, correct, total = _evaluated(model, loader)
        loss = sum(float(functional.cross_entropy(model(inputs), targets)) for inputs, targets in loader)
    model.train(was_training)
    return loss, correct / total


@wrong("evaluate", fails="loss")
def mean_divided_by_samples(model, loader):
    """Adds up means over batches, and divides by the number of samples."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        _, correct, total = _evaluated(model, loader)
        loss = sum(float(functional.cross_entropy(model(inputs), targets)) for inputs, targets in loader)
    model.train(was_training)
    return loss / total, correct / total


@torch.no_grad()
def _sums(model, loader):
    """Summed loss, hits, samples."""
    loss, hits, samples = 0.0, 0, 0
    for inputs, targets in loader:
        logits = model(inputs)
        loss += functional.cross_entropy(logits, targets, reduction="sum").item()
        hits += (logits.argmax(1) == targets).sum().item()
        samples += len(targets)
    return loss, hits, samples


@wrong("evaluate", fails="accuracy")
def asks_the_data_set(model, loader):
    """len(loader.dataset): a generator has no data set, and with drop_last it is another number."""
    mode = model.training
    loss, hits, _ = _sums(model.eval(), loader)
    model.train(mode)
    return loss / len(loader.dataset), hits / len(loader.dataset)


@wrong("evaluate", fails="accuracy")
def goes_through_it_twice(model, loader):
    """Once for the loss and once for the accuracy: a generator is empty the second time."""
    mode = model.training
    loss, _, samples = _sums(model.eval(), loader)
    _, hits, _ = _sums(model, loader)
    model.train(mode)
    return loss / samples, hits / samples


@wrong("evaluate", fails="mode restored")
def restores_the_model_but_not_its_layers(model, loader):
    """model.training is the mode of the model itself; its layers have their own."""
    mode = model.training
    loss, hits, samples = _sums(model.eval(), loader)
    model.training = mode
    return loss / samples, hits / samples


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


@wrong("evaluate", fails="uneven last batch")
def all_batches_taken_for_full(model, loader):
    """Takes the number of batches times the first one's size for the number of samples."""
    was_training = model.training
    model.eval()
    batches = list(loader)
    with torch.no_grad():
        loss, correct, _ = _evaluated(model, batches)
    model.train(was_training)
    total = len(batches) * len(batches[0][0])
    return loss / total, correct / total


@wrong("evaluate", fails="uneven last batch")
def exact_accuracy_loose_loss(model, loader):
    """Counts hits exactly, and averages the losses of batches."""
    was_training = model.training
    model.eval()
    batches = list(loader)
    with torch.no_grad():
        _, correct, total = _evaluated(model, batches)
        loss = sum(float(functional.cross_entropy(model(inputs), targets)) for inputs, targets in batches)
    model.train(was_training)
    return loss / len(batches), correct / total


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


@wrong("evaluate", fails="mode restored")
def always_back_to_training_mode(model, loader):
    """Also where the model had been put into evaluation mode for good."""
    model.eval()
    with torch.no_grad():
        loss, correct, total = _evaluated(model, loader)
    model.train()
    return loss / total, correct / total


@wrong("evaluate", fails="no graph")
def records_graphs(model, loader):
    """Keeps every activation for a backward pass that never comes."""
    was_training = model.training
    model.eval()
    loss, correct, total = _evaluated(model, loader)
    model.train(was_training)
    return loss / total, correct / total


@wrong("evaluate", fails="no graph")
def freezes_the_model(model, loader):
    """Turns gradients off at every parameter, and never on again."""
    was_training = model.training
    model.eval()
    model.requires_grad_(False)
    with torch.no_grad():
        loss, correct, total = _evaluated(model, loader)
    model.train(was_training)
    return loss / total, correct / total


@wrong("evaluate", fails="no graph")
def gradients_off_for_good(model, loader):
    """Turns gradients off, and never on again: the next training step fails."""
    was_training = model.training
    model.eval()
    torch.set_grad_enabled(False)
    loss, correct, total = _evaluated(model, loader)
    model.train(was_training)
    return loss / total, correct / total


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


@wrong("accumulate_gradients", fails="equal micro-batches")
def divides_means_by_samples(model, micro_batches, loss_fn):
    """Divides by n what has been divided by m already."""
    total, n = 0.0, _samples(micro_batches)
    for inputs, targets in micro_batches:
        loss = loss_fn(model(inputs), targets) / n
        loss.backward()
        total += loss.detach()
    return total


@wrong("accumulate_gradients", fails="equal micro-batches")
def never_goes_backward(model, micro_batches, loss_fn):
    """Averages losses, and leaves no gradient."""
    n = _samples(micro_batches)
    with torch.no_grad():
        return sum(loss_fn(model(inputs), targets) * len(inputs) / n for inputs, targets in micro_batches)


@wrong("accumulate_gradients", fails="uneven micro-batches")
def divides_by_micro_batches(model, micro_batches, loss_fn):
    """The usual recipe, right only where all micro-batches are of one size."""
    total = 0.0
    for inputs, targets in micro_batches:
        loss = loss_fn(model(inputs), targets) / len(micro_batches)
        loss.backward()
        total += loss.detach()
    return total


@wrong("accumulate_gradients", fails="uneven micro-batches")
def size_of_the_first(model, micro_batches, loss_fn):
    """Takes the first micro-batch's size for that of all."""
    size = len(micro_batches[0][0])
    total, n = 0.0, _samples(micro_batches)
    for inputs, targets in micro_batches:
        loss = loss_fn(model(inputs), targets) * size / n
        loss.backward()
        total += loss.detach()
    return total


@wrong("accumulate_gradients", fails="uneven micro-batches")
def cross_entropy_whatever_is_asked(model, micro_batches, loss_fn):
    """Does not use the loss that it is given."""
    total, n = 0.0, _samples(micro_batches)
    for inputs, targets in micro_batches:
        loss = functional.cross_entropy(model(inputs), targets) * len(inputs) / n
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


@wrong("accumulate_gradients", fails="loss of the full batch")
def plain_mean_of_losses(model, micro_batches, loss_fn):
    """Weights the gradients and not the losses."""
    losses, n = [], _samples(micro_batches)
    for inputs, targets in micro_batches:
        loss = loss_fn(model(inputs), targets)
        (loss * len(inputs) / n).backward()
        losses.append(loss.detach())
    return torch.stack(losses).mean()


@wrong("accumulate_gradients", fails="loss of the full batch")
def attached_loss(model, micro_batches, loss_fn):
    """Adds up losses with their graphs."""
    total, n = 0.0, _samples(micro_batches)
    for inputs, targets in micro_batches:
        loss = loss_fn(model(inputs), targets) * len(inputs) / n
        loss.backward()
        total = total + loss
    return total


@wrong("accumulate_gradients", fails="one graph at a time")
def one_backward_at_the_end(model, micro_batches, loss_fn):
    """All graphs are alive until the single backward."""
    n = _samples(micro_batches)
    loss = sum(loss_fn(model(inputs), targets) * len(inputs) / n for inputs, targets in micro_batches)
    loss.backward()
    return loss.detach()


@wrong("accumulate_gradients", fails="one graph at a time")
def retains_every_graph(model, micro_batches, loss_fn):
    """retain_graph=True keeps what backward would have freed."""
    losses, n = [], _samples(micro_batches)
    for inputs, targets in micro_batches:
        losses.append(loss_fn(model(inputs), targets) * len(inputs) / n)
        losses[-1].backward(retain_graph=True)
    return torch.stack(losses).sum().detach()


@wrong("accumulate_gradients", fails="one graph at a time")
def full_batch_after_all(model, micro_batches, loss_fn):
    """Puts together what had been cut because it did not fit."""
    inputs = torch.cat([inputs for inputs, _ in micro_batches])
    targets = torch.cat([targets for _, targets in micro_batches])
    loss = loss_fn(model(inputs), targets)
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


@wrong("measure_throughput", fails="warm-up and timed steps")
def warmup_out_of_the_steps(step, batch_size, warmup, steps, synchronize):
    """Takes the warm-up out of the steps that were to be timed."""
    start = time.perf_counter()
    for number in range(steps):
        if number == warmup:
            synchronize()
            start = time.perf_counter()
        step()
    synchronize()
    return batch_size * (steps - warmup) / (time.perf_counter() - start)


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


@wrong("measure_throughput", fails="waits before the clock starts")
def never_waits(step, batch_size, warmup, steps, synchronize):
    """Times how fast steps can be queued."""
    for _ in range(warmup):
        step()
    start = time.perf_counter()
    for _ in range(steps):
        step()
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
def clock_before_warmup(step, batch_size, warmup, steps, synchronize):
    """Waits where it should, and starts the clock too early."""
    start = time.perf_counter()
    for _ in range(warmup):
        step()
    synchronize()
    for _ in range(steps):
        step()
    synchronize()
    return batch_size * steps / (time.perf_counter() - start)


@wrong("measure_throughput", fails="samples a second")
def clock_stopped_before_waiting(step, batch_size, warmup, steps, synchronize):
    """Waits, but has read the clock already."""
    for _ in range(warmup):
        step()
    synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    seconds = time.perf_counter() - start
    synchronize()
    return batch_size * steps / seconds


@wrong("measure_throughput", fails="samples a second")
def steps_a_second(step, batch_size, warmup, steps, synchronize):
    """Forgets how many samples a step has."""
    for _ in range(warmup):
        step()
    synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize()
    return steps / (time.perf_counter() - start)


@wrong("measure_throughput", fails="samples a second")
def counts_the_warmup(step, batch_size, warmup, steps, synchronize):
    """Times `steps` steps, and counts the samples of all."""
    for _ in range(warmup):
        step()
    synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize()
    return batch_size * (warmup + steps) / (time.perf_counter() - start)


@wrong("measure_throughput", fails="samples a second")
def processor_time(step, batch_size, warmup, steps, synchronize):
    """process_time does not run while the process waits for a device."""
    for _ in range(warmup):
        step()
    synchronize()
    start = time.process_time()
    for _ in range(steps):
        step()
    synchronize()
    return batch_size * steps / max(time.process_time() - start, 1e-9)


@wrong("measure_throughput", fails="samples a second")
def rounded_down(step, batch_size, warmup, steps, synchronize):
    """Whole samples only: at one sample in two seconds nothing is left."""
    for _ in range(warmup):
        step()
    synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize()
    return batch_size * steps // (time.perf_counter() - start)


@wrong("measure_throughput", fails="samples a second")
def seconds_a_sample(step, batch_size, warmup, steps, synchronize):
    """The reciprocal."""
    for _ in range(warmup):
        step()
    synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize()
    return (time.perf_counter() - start) / (batch_size * steps)


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
def weights_only(parameters, optimizer, precision):
    """What inference needs."""
    _check(optimizer, precision)
    return parameters * WIDTH[precision]


@wrong("training_memory_bytes", fails="full precision")
def forgets_gradients(parameters, optimizer, precision):
    """Weights and optimizer states."""
    _check(optimizer, precision)
    each = WIDTH[precision] + _master(precision) + STATES[optimizer] * _state_width(precision)
    return parameters * each


@wrong("training_memory_bytes", fails="full precision")
def one_number_for_adam(parameters, optimizer, precision):
    """Adam keeps two moments."""
    _check(optimizer, precision)
    states = min(STATES[optimizer], 1)
    return parameters * (2 * WIDTH[precision] + _master(precision) + states * _state_width(precision))


@wrong("training_memory_bytes", fails="full precision")
def bits_for_bytes(parameters, optimizer, precision):
    """32 bits are 4 bytes."""
    _check(optimizer, precision)
    each = 2 * WIDTH[precision] + _master(precision) + STATES[optimizer] * _state_width(precision)
    return parameters * each * 8


@wrong("training_memory_bytes", fails="half precision")
def states_always_full(parameters, optimizer, precision):
    """With everything in bf16 the moments are bf16 too."""
    _check(optimizer, precision)
    return parameters * (2 * WIDTH[precision] + _master(precision) + STATES[optimizer] * 4)


@wrong("training_memory_bytes", fails="half precision")
def everything_in_4_bytes(parameters, optimizer, precision):
    """Ignores the precision."""
    _check(optimizer, precision)
    return parameters * 4 * (2 + STATES[optimizer])


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


@wrong("training_memory_bytes", fails="mixed precision")
def moments_in_half(parameters, optimizer, precision):
    """The optimizer's numbers are kept in full precision, or small updates would be lost."""
    _check(optimizer, precision)
    states = STATES[optimizer] * WIDTH[precision]
    return parameters * (2 * WIDTH[precision] + _master(precision) + states)


@wrong("training_memory_bytes", fails="unknown names")
def unknown_is_sgd(parameters, optimizer, precision):
    """An optimizer that nobody has heard of keeps nothing."""
    states = STATES.get(optimizer, 0) * _state_width(precision)
    return parameters * (2 * WIDTH.get(precision, 4) + _master(precision) + states)


@wrong("training_memory_bytes", fails="unknown names")
def key_error(parameters, optimizer, precision):
    """A KeyError tells a caller less than it could."""
    states = STATES[optimizer] * _state_width(precision)
    return parameters * (2 * WIDTH[precision] + _master(precision) + states)
