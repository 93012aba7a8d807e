"""Mistakes that people make in unit 01."""

import copy
import io
import random
import time
from datetime import datetime

import numpy as np
import torch
from torch.nn import functional

from tests.answers import wrong

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


@wrong("train_step", fails="one update")
def takes_a_label_for_padding(model, inputs, targets, optimizer):
    """In a text 0 may stand where nothing is; here it is a class."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets, ignore_index=0)
    loss.backward()
    optimizer.step()
    return loss.detach()


@wrong("train_step", fails="one update")
def logits_for_log_probabilities(model, inputs, targets, optimizer):
    """nll_loss wants log_softmax before it."""
    optimizer.zero_grad()
    loss = functional.nll_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


@wrong("train_step", fails="one update")
def samples_taken_for_vectors(model, inputs, targets, optimizer):
    """Lays each sample's numbers out in a row, as the first tutorial does: a convolution takes no rows."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs.flatten(1)), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


@wrong("train_step", fails="one update")
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


@wrong("train_step", fails="loss")
def a_number_made_a_tensor_again(model, inputs, targets, optimizer):
    """A tensor is returned, and the device has been waited for."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return torch.tensor(loss.item())


@wrong("train_step", fails="one update")
def skips_what_is_not_finite(model, inputs, targets, optimizer):
    """A step that is left out where it is NaN hides that the training has diverged."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    if loss.isfinite():
        loss.backward()
        optimizer.step()
    return loss.detach()


@wrong("train_step", fails="one update")
def makes_zeros_of_nan(model, inputs, targets, optimizer):
    """The training goes on as if nothing had happened."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    for parameter in model.parameters():
        parameter.grad.nan_to_num_()
    optimizer.step()
    return loss.detach()


@wrong("train_step", fails="loss")
def leaves_nan_out_of_the_loss_it_returns(model, inputs, targets, optimizer):
    """The weights are NaN, and the curve is fine."""
    optimizer.zero_grad()
    losses = functional.cross_entropy(model(inputs), targets, reduction="none")
    losses.mean().backward()
    optimizer.step()
    return losses.detach().nanmean()


@wrong("train_step", fails="loss")
def warns_of_a_large_loss(model, inputs, targets, optimizer):
    """`if` waits for the device, in every step."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    if loss > 5:
        print("the loss is large")
    return loss.detach()


@wrong("train_step", fails="one update")
def exponentials_as_they_are(model, inputs, targets, optimizer):
    """exp(89) is infinite in single precision: take the largest logit off before."""
    optimizer.zero_grad()
    logits = model(inputs)
    loss = (logits.exp().sum(1).log() - logits.gather(1, targets[:, None]).squeeze(1)).mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


@wrong("train_step", fails="one update")
def squeezes_the_logits(model, inputs, targets, optimizer):
    """Takes all dimensions of 1 away: with a single sample that of the samples, too."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs).squeeze(), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


@wrong("train_step", fails="one update")
def leaves_out_a_single_sample_of_its_own(model, inputs, targets, optimizer):
    """A batch of one is no batch for a batch norm: no update, though the loss is there."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    if len(inputs) > 1:
        optimizer.step()
    return loss.detach()


@wrong("train_step", fails="one update")
def clips_the_gradient(model, inputs, targets, optimizer):
    """What keeps a language model's training from diverging makes another step of this one."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 5.0)
    optimizer.step()
    return loss.detach()


@wrong("train_step", fails="the model's mode")
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


@wrong("train_step", fails="the model's mode")
def in_evaluation_mode(model, inputs, targets, optimizer):
    """Trains without dropout."""
    model.eval()
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


@wrong("train_step", fails="the model's mode")
def leaves_it_in_training_mode(model, inputs, targets, optimizer):
    """The step is right, and whoever had frozen the batch norms gets them back thawed."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    model.train()
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
def clears_the_first_group(model, inputs, targets, optimizer):
    """An optimizer may have several groups of parameters."""
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = None
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


@wrong("train_step", fails="loss")
def keeps_the_graph(model, inputs, targets, optimizer):
    """Whoever collects these losses collects the graphs of all steps."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss


@wrong("train_step", fails="loss")
def with_names_of_the_numbers(model, inputs, targets, optimizer):
    """A dictionary, for a log; the specification has one tensor."""
    return {"loss": _step(model, inputs, targets, optimizer)}


@wrong("train_step", fails="the model's mode")
def freezes_the_layers_of_a_model_that_trains(model, inputs, targets, optimizer):
    """Puts layers, not the model, into evaluation mode, as one freezes batch norms, and leaves them in it."""
    for layer in model.children():
        layer.eval()
    return _step(model, inputs, targets, optimizer)


@wrong("train_step", fails="loss")
def labels_as_indices_one_by_one(model, inputs, targets, optimizer):
    """A tensor of one number is an index only when the number is there: each label is waited for."""
    optimizer.zero_grad()
    rows = functional.log_softmax(model(inputs), 1)
    loss = -torch.stack([row[label] for row, label in zip(rows, targets, strict=True)]).mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


@wrong("train_step", fails="loss")
def rows_of_a_table(model, inputs, targets, optimizer):
    """One-hot labels as rows of torch.eye, which is on the host, where labels of a GPU are no index."""
    optimizer.zero_grad()
    logits = model(inputs)
    loss = functional.cross_entropy(logits, torch.eye(logits.shape[1])[targets])
    loss.backward()
    optimizer.step()
    return loss.detach()


@wrong("train_step", fails="the model's mode")
def a_single_sample_without_batch_norm(model, inputs, targets, optimizer):
    """A batch norm cannot train on one sample; but who calls has chosen the mode."""
    mode = model.training
    if len(inputs) == 1:
        model.eval()
    loss = _step(model, inputs, targets, optimizer)
    model.train(mode)
    return loss


@wrong("train_step", fails="the model's mode")
def updates_in_training_mode_only(model, inputs, targets, optimizer):
    """One function for both phases, as tutorials have it: a model with frozen batch norms learns nothing."""
    with torch.set_grad_enabled(model.training):
        loss = functional.cross_entropy(model(inputs), targets)
        if model.training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return loss.detach()


@wrong("train_step", fails="one update")
def without_the_hooks(model, inputs, targets, optimizer):
    """model.forward(inputs) leaves out what weight norm, profilers and sharding hook to a call."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model.forward(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


@wrong("train_step", fails="one update")
def an_optimizer_for_each_step(model, inputs, targets, optimizer):
    """With the rate of the one that is given, and never any momentum."""
    return _step(model, inputs, targets, type(optimizer)(model.parameters(), **optimizer.defaults))


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


@wrong("evaluate", fails="accuracy")
def inputs_taken_for_vectors(model, loader):
    """flatten(1) suits a perceptron, and no convolution."""
    mode = model.training
    loss, hits, samples = _sums(model.eval(), ((inputs.flatten(1), targets) for inputs, targets in loader))
    model.train(mode)
    return loss / samples, hits / samples


@wrong("evaluate", fails="loss")
def a_little_for_the_logarithm(model, loader):
    """log(p + 1e-8) is never below -18.4, however sure the model is of something else."""
    mode = model.training
    model.eval()
    loss, hits, samples = 0.0, 0, 0
    with torch.no_grad():
        for inputs, targets in loader:
            probabilities = model(inputs).softmax(1)
            loss -= (probabilities.gather(1, targets[:, None]) + 1e-8).log().sum().item()
            hits += (probabilities.argmax(1) == targets).sum().item()
            samples += len(targets)
    model.train(mode)
    return loss / samples, hits / samples


@wrong("evaluate", fails="loss")
def leaves_nan_out_of_the_mean(model, loader):
    """A model that is broken has a loss like any other."""
    was_training = model.training
    model.eval()
    lost, correct, total = 0.0, 0, 0
    with torch.no_grad():
        for inputs, targets in loader:
            logits = model(inputs)
            lost += functional.cross_entropy(logits, targets, reduction="none").nansum().item()
            correct += (logits.argmax(1) == targets).sum().item()
            total += len(targets)
    model.train(was_training)
    return lost / total, correct / total


@wrong("evaluate", fails="loss")
def loss_for_a_table(model, loader):
    """Four digits are for those who read it."""
    mode = model.training
    loss, hits, samples = _sums(model.eval(), loader)
    model.train(mode)
    return round(loss / samples, 4), hits / samples


@wrong("evaluate", fails="uneven last batch")
def leaves_out_a_single_sample(model, loader):
    """A batch of one, of which a batch norm could not train, is evaluated all the same."""
    mode = model.training
    loss, hits, samples = _sums(model.eval(), (batch for batch in loader if len(batch[1]) > 1))
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


@wrong("evaluate", fails="accuracy")
def as_many_classes_as_it_sees(model, loader):
    """one_hot, if it is not told how many classes there are, makes do with those up to a batch's largest."""
    was_training = model.training
    model.eval()
    loss, correct, total = 0.0, 0, 0
    with torch.no_grad():
        for inputs, targets in loader:
            logits = model(inputs)
            loss -= (functional.one_hot(targets) * logits.log_softmax(1)).sum().item()
            correct += (logits.argmax(1) == targets).sum().item()
            total += len(targets)
    model.train(was_training)
    return loss / total, correct / total


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


@wrong("evaluate", fails="accuracy")
def more_likely_than_not(model, loader):
    """A probability above one half is enough, and of three classes not needed."""
    mode = model.training
    model.eval()
    loss, hits, samples = 0.0, 0, 0
    with torch.no_grad():
        for inputs, targets in loader:
            logits = model(inputs)
            loss += functional.cross_entropy(logits, targets, reduction="sum").item()
            hits += (logits.softmax(1).gather(1, targets[:, None]) > 0.5).sum().item()
            samples += len(targets)
    model.train(mode)
    return loss / samples, hits / samples


@wrong("evaluate", fails="evaluation mode")
def on_a_copy(model, loader):
    """Leaves the model in its mode, and needs the memory of two."""
    with torch.no_grad():
        loss, correct, total = _evaluated(copy.deepcopy(model).eval(), loader)
    return loss / total, correct / total


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


@wrong("evaluate", fails="evaluation mode")
def sets_the_attribute(model, loader):
    """model.training = False says nothing to the layers, whose dropout goes on."""
    was_training = model.training
    model.training = False
    with torch.no_grad():
        loss, correct, total = _evaluated(model, loader)
    model.training = was_training
    return loss / total, correct / total


@wrong("evaluate", fails="no graph")
def gradients_on_if_it_was_training(model, loader):
    """Takes the mode of the model for that of autograd: in evaluation mode gradients stay off."""
    was_training = model.training
    model.eval()
    torch.set_grad_enabled(False)
    loss, correct, total = _evaluated(model, loader)
    model.train(was_training)
    torch.set_grad_enabled(was_training)
    return loss / total, correct / total


@wrong("evaluate", fails="loss")
def sums_of_the_host(model, loader):
    """What is on the model's device is added to a tensor that is on the host."""
    was_training, sums = model.training, torch.zeros(3)
    model.eval()
    with torch.no_grad():
        for inputs, targets in loader:
            logits = model(inputs)
            losses = functional.cross_entropy(logits, targets, reduction="none")
            hits = (logits.argmax(1) == targets).float()
            sums += torch.stack([losses, hits, torch.ones_like(hits)]).sum(1)
    model.train(was_training)
    loss, correct, total = sums.tolist()
    return loss / total, correct / total


@wrong("evaluate", fails="accuracy")
def six_digits(model, loader):
    """As many as `print` shows of a float with %f."""
    mode = model.training
    loss, hits, samples = _sums(model.eval(), loader)
    model.train(mode)
    return float(f"{loss / samples:f}"), float(f"{hits / samples:f}")


@wrong("evaluate", fails="accuracy")
def share_of_what_is_wrong(model, loader):
    """The error rate."""
    mode = model.training
    loss, hits, samples = _sums(model.eval(), loader)
    model.train(mode)
    return loss / samples, 1 - hits / samples


@wrong("evaluate", fails="loss")
def largest_logit_for_all(model, loader):
    """The largest logit in the place of the logarithm of all exponentials: right where one is far above."""
    mode = model.training
    model.eval()
    loss, hits, samples = 0.0, 0, 0
    with torch.no_grad():
        for inputs, targets in loader:
            logits = model(inputs)
            loss += (logits.amax(1) - logits.gather(1, targets[:, None]).squeeze(1)).sum().item()
            hits += (logits.argmax(1) == targets).sum().item()
            samples += len(targets)
    model.train(mode)
    return loss / samples, hits / samples


@wrong("evaluate", fails="loss")
def on_a_device_of_its_own(model, loader):
    """The usual line; but where the model is, is the caller's choice, who finds it on the host."""
    device, mode = torch.device("cuda" if torch.cuda.is_available() else "cpu"), model.training
    batches = ((inputs.to(device), targets.to(device)) for inputs, targets in loader)
    loss, hits, samples = _sums(model.to(device).eval(), batches)
    model.train(mode)
    return loss / samples, hits / samples


@wrong("evaluate", fails="uneven last batch")
def asks_the_data_set_if_there_is_one(model, loader):
    """With a sampler, or drop_last, that has other samples than the loader."""
    mode = model.training
    loss, hits, samples = _sums(model.eval(), loader)
    model.train(mode)
    if hasattr(loader, "dataset"):
        samples = len(loader.dataset)
    return loss / samples, hits / samples


@wrong("evaluate", fails="evaluation mode")
def evaluates_without_the_hooks(model, loader):
    """model.forward(inputs) is not the model's call."""
    mode = model.training
    with torch.no_grad():
        loss, hits, samples = _evaluated(model.eval().forward, loader)
    model.train(mode)
    return loss / samples, hits / samples


# ----------------------------------------------------------------------------------------------------- fit


def _step(model, inputs, targets, optimizer):
    """Right: one step."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


def _means(model, batches):
    """Right: loss and accuracy over all samples."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        logits, targets = map(torch.cat, zip(*((model(x), y) for x, y in batches), strict=True))
    model.train(was_training)
    accuracy = (logits.argmax(1) == targets).double().mean()
    return functional.cross_entropy(logits, targets).item(), accuracy.item()


class _Fit:
    """A right answer; each mistake overrides one of its methods."""

    def __init__(self, model, train, validation, optimizer, epochs, device):
        self.model, self.train, self.validation = model, train, validation
        self.optimizer, self.epochs, self.device = optimizer, epochs, device

    def run(self, stop=lambda history: False):
        """stop: whether a history is long enough."""
        self.model.to(self.device)
        history = []
        while len(history) < self.epochs and not (history and stop(history)):
            history.append(self.epoch())
        return history

    def epoch(self):
        self.model.train()
        loss = self.pass_over(self.train)
        return (loss, *self.validated())

    def pass_over(self, batches):
        total, samples = 0.0, 0
        for inputs, targets in self.moved(batches):
            total = total + self.step(inputs, targets) * len(targets)
            samples += len(targets)
        return float(total) / samples

    def step(self, inputs, targets):
        return _step(self.model, inputs, targets, self.optimizer)

    def validated(self):
        return _means(self.model, self.moved(self.validation))

    def moved(self, batches):
        return ((inputs.to(self.device), targets.to(self.device)) for inputs, targets in batches)


@wrong("fit", fails="one epoch")
def trains_on_the_validation_set(model, train_loader, validation_loader, optimizer, epochs, device):
    """One loop for both."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    this.validated = lambda: (this.pass_over(this.validation), 0.0)
    return this.run()


@wrong("fit", fails="one epoch")
def forgets_to_clear(model, train_loader, validation_loader, optimizer, epochs, device):
    """Gradients of all batches add up."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)

    def step(inputs, targets):
        loss = functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    this.step = step
    return this.run()


@wrong("fit", fails="one epoch")
def one_step_an_epoch(model, train_loader, validation_loader, optimizer, epochs, device):
    """Accumulates over the whole epoch."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)

    def pass_over(batches):
        inputs, targets = map(torch.cat, zip(*this.moved(batches), strict=True))
        return this.step(inputs, targets).item()

    this.pass_over = pass_over
    return this.run()


@wrong("fit", fails="one epoch")
def drops_the_short_batch(model, train_loader, validation_loader, optimizer, epochs, device):
    """Steps over batches that are not full."""
    full = len(next(iter(validation_loader))[1]) - 5

    class Full:
        def __iter__(self):
            return ((x, y) for x, y in train_loader if len(y) == full)

    return _Fit(model, Full(), validation_loader, optimizer, epochs, device).run()


@wrong("fit", fails="every epoch anew")
def keeps_the_batches_of_the_first_epoch(model, train_loader, validation_loader, optimizer, epochs, device):
    """A list of batches has one order for ever, however the loader shuffles."""
    return _Fit(model, list(train_loader), list(validation_loader), optimizer, epochs, device).run()


@wrong("fit", fails="every epoch anew")
def counts_the_batches_first(model, train_loader, validation_loader, optimizer, epochs, device):
    """Goes through the loader once more, to know how long a progress bar is."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    epoch = this.epoch

    def counted():
        sum(1 for _ in validation_loader)
        return epoch()

    this.epoch = counted
    return this.run()


@wrong("fit", fails="every epoch anew")
def at_least_one_epoch(model, train_loader, validation_loader, optimizer, epochs, device):
    """Asks after the epoch whether it was the last."""
    return _Fit(model, train_loader, validation_loader, optimizer, max(1, epochs), device).run()


def _epochs_since_the_best(history):
    losses = [loss for _, loss, _ in history]
    return len(losses) - 1 - losses.index(min(losses))


@wrong("fit", fails="every epoch anew")
def stops_early(model, train_loader, validation_loader, optimizer, epochs, device):
    """Three epochs without a better validation are enough, for a patience that nobody asked for."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    return this.run(stop=lambda history: _epochs_since_the_best(history) >= 3)


@wrong("fit", fails="every epoch anew")
def stops_with_a_patience_of_twenty(model, train_loader, validation_loader, optimizer, epochs, device):
    """A long one."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    return this.run(stop=lambda history: _epochs_since_the_best(history) >= 20)


@wrong("fit", fails="every epoch anew")
def stops_when_the_loss_is_small(model, train_loader, validation_loader, optimizer, epochs, device):
    """What has converged could get better all the same."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    return this.run(stop=lambda history: history[-1][0] < 0.01)


@wrong("fit", fails="every epoch anew")
def stops_when_the_loss_is_large(model, train_loader, validation_loader, optimizer, epochs, device):
    """Takes a loss of more than a thousand for the end of a training."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    return this.run(stop=lambda history: history[-1][0] > 1000)


@wrong("fit", fails="every epoch anew")
def lowers_the_rate_every_thirty_epochs(model, train_loader, validation_loader, optimizer, epochs, device):
    """As for ImageNet; the learning rate is the caller's."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30)
    epoch = this.epoch

    def scheduled():
        numbers = epoch()
        scheduler.step()
        return numbers

    this.epoch = scheduled
    return this.run()


@wrong("fit", fails="every epoch anew")
def one_generator_for_all_epochs(model, train_loader, validation_loader, optimizer, epochs, device):
    """It is empty when the second epoch begins."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    moved = this.moved(validation_loader)
    this.validated = lambda: _means(model, moved)
    return this.run()


@wrong("fit", fails="every epoch anew")
def keeps_the_validation_from_the_random_state(
    model, train_loader, validation_loader, optimizer, epochs, device
):
    """What the validation draws is then drawn once more by the next epoch."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    validated = this.validated

    def apart():
        with torch.random.fork_rng():
            return validated()

    this.validated = apart
    return this.run()


@wrong("fit", fails="every epoch anew")
def seeds_by_the_epoch(model, train_loader, validation_loader, optimizer, epochs, device):
    """So that epochs differ; but two trainings do not, nor do two calls for an epoch each."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    epoch, done = this.epoch, []

    def seeded():
        np.random.seed(len(done))
        done.append(epoch())
        return done[-1]

    this.epoch = seeded
    return this.run()


@wrong("fit", fails="every epoch anew")
def stops_when_all_are_right(model, train_loader, validation_loader, optimizer, epochs, device):
    """An accuracy of 1 cannot get better; the model can."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    return this.run(stop=lambda history: history[-1][2] == 1)


@wrong("fit", fails="every epoch anew")
def stops_when_it_stands_still(model, train_loader, validation_loader, optimizer, epochs, device):
    """The training loss has changed by less than a tolerance; a scheduler may yet raise the rate."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    return this.run(stop=lambda history: len(history) > 5 and abs(history[-1][0] - history[-2][0]) < 1e-4)


def _keeps_the_best(this, worth):
    """Leaves the weights of the epoch that is worth most."""
    best, epoch = [], this.epoch

    def watched():
        numbers = epoch()
        if not best or worth(numbers) > best[0]:
            best[:] = [worth(numbers), {name: each.clone() for name, each in this.model.state_dict().items()}]
        return numbers

    this.epoch = watched
    history = this.run()
    if best:
        this.model.load_state_dict(best[1])
    return history


@wrong("fit", fails="every epoch anew")
def keeps_the_lowest_loss(model, train_loader, validation_loader, optimizer, epochs, device):
    """The best weights are somebody's wish, but not this specification's."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    return _keeps_the_best(this, lambda numbers: -numbers[1])


@wrong("fit", fails="every epoch anew")
def keeps_the_least_training_loss(model, train_loader, validation_loader, optimizer, epochs, device):
    """Nor those of the epoch that was best in training."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    return _keeps_the_best(this, lambda numbers: -numbers[0])


@wrong("fit", fails="every epoch anew")
def stops_when_it_diverges(model, train_loader, validation_loader, optimizer, epochs, device):
    """NaN will not go away; but who calls has asked for all epochs."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    return this.run(stop=lambda history: history[-1][0] != history[-1][0])


@wrong("fit", fails="every epoch anew")
def trains_on_through_nan(model, train_loader, validation_loader, optimizer, epochs, device):
    """Makes zeros of the NaN in its gradients: the weights look as if nothing had happened."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)

    def step(inputs, targets):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), targets)
        loss.backward()
        for parameter in model.parameters():
            parameter.grad.nan_to_num_()
        optimizer.step()
        return loss.detach()

    this.step = step
    return this.run()


@wrong("fit", fails="history")
def leaves_nan_out_of_the_sum(model, train_loader, validation_loader, optimizer, epochs, device):
    """A training that has diverged has a fine curve."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    this.step = lambda inputs, targets: _step(model, inputs, targets, optimizer).nan_to_num()
    return this.run()


@wrong("fit", fails="every epoch anew")
def stops_when_the_loss_grows(model, train_loader, validation_loader, optimizer, epochs, device):
    """A loss that is larger than at first may fall again."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    return this.run(stop=lambda history: history[-1][0] > 1.2 * history[0][0])


@wrong("fit", fails="every epoch anew")
def keeps_the_highest_accuracy(model, train_loader, validation_loader, optimizer, epochs, device):
    """As most scripts save them."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    return _keeps_the_best(this, lambda numbers: numbers[2])


@wrong("fit", fails="every epoch anew")
def lowers_the_rate_on_a_plateau(model, train_loader, validation_loader, optimizer, epochs, device):
    """The learning rate is the caller's, who has a scheduler."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    epoch = this.epoch

    def scheduled():
        numbers = epoch()
        scheduler.step(numbers[1])
        return numbers

    this.epoch = scheduled
    return this.run()


@wrong("fit", fails="every epoch anew")
def seeds_for_the_same_result(model, train_loader, validation_loader, optimizer, epochs, device):
    """Whoever calls it for one epoch after another gets the same order each time."""
    torch.manual_seed(0)
    return _Fit(model, train_loader, validation_loader, optimizer, epochs, device).run()


@wrong("fit", fails="one epoch")
def a_new_optimizer_for_the_moved_model(model, train_loader, validation_loader, optimizer, epochs, device):
    """The parameters are the same objects after the move, and the momentum so far is lost."""
    model.to(device)
    optimizer = type(optimizer)(model.parameters(), **optimizer.defaults)
    return _Fit(model, train_loader, validation_loader, optimizer, epochs, device).run()


@wrong("fit", fails="one epoch")
def clips_gradients(model, train_loader, validation_loader, optimizer, epochs, device):
    """The update is then another one."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)

    def step(inputs, targets):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    this.step = step
    return this.run()


@wrong("fit", fails="history")
def rounds_the_history(model, train_loader, validation_loader, optimizer, epochs, device):
    """Four digits each."""
    history = _Fit(model, train_loader, validation_loader, optimizer, epochs, device).run()
    return [tuple(round(number, 4) for number in epoch) for epoch in history]


@wrong("fit", fails="history")
def mean_of_the_batches_means(model, train_loader, validation_loader, optimizer, epochs, device):
    """A sample of the short batch counts for more."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)

    def pass_over(batches):
        losses = [this.step(inputs, targets) for inputs, targets in this.moved(batches)]
        return torch.stack(losses).mean().item()

    this.pass_over = pass_over
    return this.run()


@wrong("fit", fails="history")
def the_last_batchs_loss(model, train_loader, validation_loader, optimizer, epochs, device):
    """What a progress bar shows."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)

    def pass_over(batches):
        return [this.step(inputs, targets) for inputs, targets in this.moved(batches)][-1].item()

    this.pass_over = pass_over
    return this.run()


@wrong("fit", fails="history")
def sums_over_all_epochs(model, train_loader, validation_loader, optimizer, epochs, device):
    """Never sets the sum back: each epoch's loss is the mean of all so far."""
    history = _Fit(model, train_loader, validation_loader, optimizer, epochs, device).run()
    means = [sum(epoch[0] for epoch in history[: n + 1]) / (n + 1) for n in range(len(history))]
    return [(mean, *epoch[1:]) for mean, epoch in zip(means, history, strict=True)]


@wrong("fit", fails="history")
def validates_before_it_trains(model, train_loader, validation_loader, optimizer, epochs, device):
    """The numbers of the epoch before."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)

    def epoch():
        validated = this.validated()
        model.train()
        return (this.pass_over(train_loader), *validated)

    this.epoch = epoch
    return this.run()


@wrong("fit", fails="history")
def accuracy_in_percent(model, train_loader, validation_loader, optimizer, epochs, device):
    """From 0 to 100."""
    history = _Fit(model, train_loader, validation_loader, optimizer, epochs, device).run()
    return [(train, loss, 100 * accuracy) for train, loss, accuracy in history]


@wrong("fit", fails="history")
def a_list_for_each_number(model, train_loader, validation_loader, optimizer, epochs, device):
    """As one plots them: all training losses, then the others."""
    return tuple(
        zip(*_Fit(model, train_loader, validation_loader, optimizer, epochs, device).run(), strict=True)
    )


@wrong("fit", fails="modes")
def in_the_mode_that_it_finds(model, train_loader, validation_loader, optimizer, epochs, device):
    """Trains a model that comes in evaluation mode without dropout."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    this.epoch = lambda: (this.pass_over(train_loader), *this.validated())
    return this.run()


@wrong("fit", fails="modes")
def validates_with_graphs(model, train_loader, validation_loader, optimizer, epochs, device):
    """Evaluation mode alone records graphs, which take memory."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)

    def validated():
        model.eval()
        batches = this.moved(validation_loader)
        logits, targets = map(torch.cat, zip(*((model(x), y) for x, y in batches), strict=True))
        accuracy = (logits.argmax(1) == targets).double().mean()
        return functional.cross_entropy(logits, targets).item(), accuracy.item()

    this.validated = validated
    return this.run()


@wrong("fit", fails="modes")
def training_mode_once(model, train_loader, validation_loader, optimizer, epochs, device):
    """model.train() before all epochs, and an evaluation that leaves evaluation mode behind."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    model.train()

    def epoch():
        loss = this.pass_over(train_loader)
        model.eval()
        return (loss, *this.validated())

    this.epoch = epoch
    return this.run()


@wrong("fit", fails="on the device")
def forgets_the_model(model, train_loader, validation_loader, optimizer, epochs, device):
    """Moves the batches only."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    return [this.epoch() for _ in range(epochs)]


@wrong("fit", fails="on the device")
def asks_for_a_gpu_itself(model, train_loader, validation_loader, optimizer, epochs, device):
    """The first GPU if there is one, whatever device is asked for."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return _Fit(model, train_loader, validation_loader, optimizer, epochs, device).run()


@wrong("fit", fails="on the device")
def forgets_to_keep_what_was_moved(model, train_loader, validation_loader, optimizer, epochs, device):
    """tensor.to() moves nothing: it returns another tensor."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)

    def moved(batches):
        for inputs, targets in batches:
            inputs.to(device)
            targets.to(device)
            yield inputs, targets

    this.moved = moved
    return this.run()


@wrong("fit", fails="on the device")
def validates_on_the_host(model, train_loader, validation_loader, optimizer, epochs, device):
    """Moves the batches of the training only."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    this.validated = lambda: _means(model, validation_loader)
    return this.run()


@wrong("fit", fails="on the device")
def sums_on_the_host(model, train_loader, validation_loader, optimizer, epochs, device):
    """torch.zeros(()) is on the host, and takes no loss from a GPU in place."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)

    def pass_over(batches):
        total, samples = torch.zeros(()), 0
        for inputs, targets in this.moved(batches):
            total += this.step(inputs, targets) * len(targets)
            samples += len(targets)
        return total.item() / samples

    this.pass_over = pass_over
    return this.run()


@wrong("fit", fails="on the device")
def weights_on_the_host(model, train_loader, validation_loader, optimizer, epochs, device):
    """torch.tensor(sizes) is on the host, the losses are not."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)

    def pass_over(batches):
        losses, sizes = [], []
        for inputs, targets in this.moved(batches):
            losses.append(this.step(inputs, targets))
            sizes.append(len(targets))
        return ((torch.stack(losses) * torch.tensor(sizes)).sum() / sum(sizes)).item()

    this.pass_over = pass_over
    return this.run()


@wrong("fit", fails="one epoch")
def clears_after_the_step_only(model, train_loader, validation_loader, optimizer, epochs, device):
    """The first step takes along what was in .grad before."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)

    def step(inputs, targets):
        loss = functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    this.step = step
    return this.run()


@wrong("fit", fails="waits once an epoch")
def a_number_in_every_step(model, train_loader, validation_loader, optimizer, epochs, device):
    """loss.item() waits until the device has computed it."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    this.step = lambda inputs, targets: _step(model, inputs, targets, optimizer).item()
    return this.run()


@wrong("fit", fails="waits once an epoch")
def brings_each_loss_to_the_host(model, train_loader, validation_loader, optimizer, epochs, device):
    """to("cpu") has to wait for what it copies."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    this.step = lambda inputs, targets: _step(model, inputs, targets, optimizer).to("cpu")
    return this.run()


@wrong("fit", fails="on the device")
def an_array_in_every_step(model, train_loader, validation_loader, optimizer, epochs, device):
    """NumPy has no tensors of the device's."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    this.step = lambda inputs, targets: np.asarray(_step(model, inputs, targets, optimizer))
    return this.run()


@wrong("fit", fails="waits once an epoch")
def looks_for_nan(model, train_loader, validation_loader, optimizer, epochs, device):
    """`if` needs to know."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)

    def step(inputs, targets):
        loss = _step(model, inputs, targets, optimizer)
        if loss.isnan():
            print("the training has diverged")
        return loss

    this.step = step
    return this.run()


def _of_those_with_a_label(model, optimizer, taken):
    """A step on the mean of those losses of samples that taken(losses, known) leaves; all have a label."""

    def step(inputs, targets):
        optimizer.zero_grad()
        loss = taken(functional.cross_entropy(model(inputs), targets, reduction="none"), targets >= 0).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@wrong("fit", fails="waits once an epoch")
def takes_losses_by_a_mask(model, train_loader, validation_loader, optimizer, epochs, device):
    """How many are taken, and so the result's shape, is known when the device has computed the mask."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    this.step = _of_those_with_a_label(model, optimizer, lambda losses, known: losses[known])
    return this.run()


@wrong("fit", fails="waits once an epoch")
def takes_losses_where(model, train_loader, validation_loader, optimizer, epochs, device):
    """`where` with a condition alone is `nonzero`."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    this.step = _of_those_with_a_label(model, optimizer, lambda losses, known: losses[torch.where(known)])
    return this.run()


@wrong("fit", fails="waits once an epoch")
def selects_losses(model, train_loader, validation_loader, optimizer, epochs, device):
    """The mask under another name."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    this.step = _of_those_with_a_label(model, optimizer, torch.masked_select)
    return this.run()


@wrong("fit", fails="waits once an epoch")
def stores_losses_on_the_host(model, train_loader, validation_loader, optimizer, epochs, device):
    """Each loss goes into a tensor on the host, and waits to be there."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)

    def pass_over(batches):
        losses, sizes = torch.zeros(1000), []
        for number, (inputs, targets) in enumerate(this.moved(batches)):
            losses[number] = this.step(inputs, targets)
            sizes.append(len(targets))
        return (losses[: len(sizes)] @ torch.tensor(sizes, dtype=torch.float32)).item() / sum(sizes)

    this.pass_over = pass_over
    return this.run()


@wrong("fit", fails="waits once an epoch")
def a_line_every_hundred_steps(model, train_loader, validation_loader, optimizer, epochs, device):
    """A log, which an epoch of a hundred steps has a line of."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    done = []

    def step(inputs, targets):
        done.append(_step(model, inputs, targets, optimizer))
        if len(done) % 100 == 0:
            print(f"{len(done)} steps, loss {done[-1].item():.3f}")
        return done[-1]

    this.step = step
    return this.run()


@wrong("fit", fails="waits once an epoch")
def prints_each_loss(model, train_loader, validation_loader, optimizer, epochs, device):
    """To write a number down, too, it has to be there."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)

    def step(inputs, targets):
        loss = _step(model, inputs, targets, optimizer)
        print(f"loss {loss:.3f}")
        return loss

    this.step = step
    return this.run()


@wrong("fit", fails="every epoch anew")
def seeds_the_augmentation(model, train_loader, validation_loader, optimizer, epochs, device):
    """Of Python and NumPy only: who calls it for one epoch after another gets the same images each time."""
    random.seed(0)
    np.random.seed(0)
    return _Fit(model, train_loader, validation_loader, optimizer, epochs, device).run()


@wrong("fit", fails="every epoch anew")
def seeds_within_a_fork(model, train_loader, validation_loader, optimizer, epochs, device):
    """The state outside stays as it was; the orders inside come again in every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return _Fit(model, train_loader, validation_loader, optimizer, epochs, device).run()


@wrong("fit", fails="every epoch anew")
def puts_the_random_state_back(model, train_loader, validation_loader, optimizer, epochs, device):
    """The caller's next epoch then has the same order again."""
    state = torch.get_rng_state()
    history = _Fit(model, train_loader, validation_loader, optimizer, epochs, device).run()
    torch.set_rng_state(state)
    return history


@wrong("fit", fails="modes")
def sets_the_attribute_only(model, train_loader, validation_loader, optimizer, epochs, device):
    """model.training = True leaves the layers of a model that comes in evaluation mode in it."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)

    def epoch():
        model.training = True
        return (this.pass_over(train_loader), *this.validated())

    this.epoch = epoch
    return this.run()


@wrong("fit", fails="history")
def losses_after_the_updates(model, train_loader, validation_loader, optimizer, epochs, device):
    """Goes forward once more, and tells what each batch's loss has become."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)

    def step(inputs, targets):
        _step(model, inputs, targets, optimizer)
        with torch.no_grad():
            return functional.cross_entropy(model(inputs), targets)

    this.step = step
    return this.run()


@wrong("fit", fails="waits once an epoch")
def brings_the_logits_to_the_host(model, train_loader, validation_loader, optimizer, epochs, device):
    """For an accuracy of the training: what is copied has to be there, a number or many."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    hits = []

    def step(inputs, targets):
        optimizer.zero_grad()
        logits = model(inputs)
        loss = functional.cross_entropy(logits, targets)
        loss.backward()
        optimizer.step()
        hits.append((logits.detach().to("cpu").argmax(1), targets.to("cpu")))
        return loss.detach()

    this.step = step
    return this.run()


@wrong("fit", fails="on the device")
def begins_with_a_number_of_the_host(model, train_loader, validation_loader, optimizer, epochs, device):
    """as_tensor makes a tensor on the host, as all do to whom no device is named."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)

    def pass_over(batches):
        total, samples = torch.as_tensor(0.0), 0
        for inputs, targets in this.moved(batches):
            total += this.step(inputs, targets) * len(targets)
            samples += len(targets)
        return total.item() / samples

    this.pass_over = pass_over
    return this.run()


@wrong("fit", fails="on the device")
def stacks_a_number_of_the_host(model, train_loader, validation_loader, optimizer, epochs, device):
    """A single number may be a factor; what is stacked has to be in one place."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)

    def pass_over(batches):
        sums = torch.zeros(2, device=device)
        for inputs, targets in this.moved(batches):
            samples = torch.tensor(float(len(targets)))
            sums += torch.stack([this.step(inputs, targets) * samples, samples])
        return (sums[0] / sums[1]).item()

    this.pass_over = pass_over
    return this.run()


@wrong("fit", fails="on the device")
def rows_of_a_table_on_the_host(model, train_loader, validation_loader, optimizer, epochs, device):
    """One-hot labels as rows of torch.eye, which is on the host, where labels of a GPU are no index."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)

    def step(inputs, targets):
        optimizer.zero_grad()
        logits = model(inputs)
        loss = functional.cross_entropy(logits, torch.eye(logits.shape[1])[targets])
        loss.backward()
        optimizer.step()
        return loss.detach()

    this.step = step
    return this.run()


@wrong("fit", fails="on the device")
def brings_the_model_home(model, train_loader, validation_loader, optimizer, epochs, device):
    """The caller's next line has its data on the device, and finds the model on the host."""
    history = _Fit(model, train_loader, validation_loader, optimizer, epochs, device).run()
    model.cpu()
    return history


@wrong("fit", fails="waits once an epoch")
def saves_after_every_step(model, train_loader, validation_loader, optimizer, epochs, device):
    """What is written to a file has to be there."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)

    def step(inputs, targets):
        loss = _step(model, inputs, targets, optimizer)
        torch.save(model.state_dict(), io.BytesIO())
        return loss

    this.step = step
    return this.run()


@wrong("fit", fails="on the device")
def moves_to_a_gpu_only(model, train_loader, validation_loader, optimizer, epochs, device):
    """Takes the host for the place where every model is."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    if device.type != "cpu":
        model.to(device)
    return [this.epoch() for _ in range(epochs)]


@wrong("fit", fails="on the device")
def moves_the_parameters_only(model, train_loader, validation_loader, optimizer, epochs, device):
    """Buffers, such as a batch norm's means, stay where they are."""
    this = _Fit(model, train_loader, validation_loader, optimizer, epochs, device)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(device)
    return [this.epoch() for _ in range(epochs)]


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
def a_number_of_each_loss(model, micro_batches, loss_fn):
    """item() waits for the device, once a micro-batch."""
    n, total = _samples(micro_batches), 0.0
    for inputs, targets in micro_batches:
        loss = loss_fn(model(inputs), targets) * len(inputs) / n
        loss.backward()
        total += loss.item()
    return torch.tensor(total)


@wrong("accumulate_gradients", fails="loss of the full batch")
def attached_loss(model, micro_batches, loss_fn):
    """Adds up losses with their graphs."""
    total, n = 0.0, _samples(micro_batches)
    for inputs, targets in micro_batches:
        loss = loss_fn(model(inputs), targets) * len(inputs) / n
        loss.backward()
        total = total + loss
    return total


@wrong("accumulate_gradients", fails="nothing else changes")
def empties_the_list(model, micro_batches, loss_fn):
    """Takes each micro-batch out of the list, which is the caller's."""
    samples = sum(len(inputs) for inputs, _ in micro_batches)
    total = 0.0
    while micro_batches:
        inputs, targets = micro_batches.pop(0)
        loss = loss_fn(model(inputs), targets) * (len(inputs) / samples)
        loss.backward()
        total += loss.detach()
    return total


@wrong("accumulate_gradients", fails="nothing else changes")
def takes_a_step_itself(model, micro_batches, loss_fn):
    """The gradients are there, so they are used: the caller's optimizer then goes on from other weights."""
    loss = _accumulated(model, micro_batches, loss_fn)
    torch.optim.SGD(model.parameters(), lr=0.01).step()
    return loss


@wrong("accumulate_gradients", fails="nothing else changes")
def scales_inputs_in_place(model, micro_batches, loss_fn):
    """What is no longer needed here may be needed again by the caller."""
    loss = _accumulated(model, micro_batches, loss_fn)
    for inputs, _ in micro_batches:
        inputs.div_(3.0)
    return loss


@wrong("accumulate_gradients", fails="nothing else changes")
def largest_first(model, micro_batches, loss_fn):
    """Sorts the caller's list, so that what does not fit shows at once."""
    micro_batches.sort(key=lambda batch: len(batch[0]), reverse=True)
    total, n = 0.0, _samples(micro_batches)
    for inputs, targets in micro_batches:
        loss = loss_fn(model(inputs), targets) * len(inputs) / n
        loss.backward()
        total += loss.detach()
    return total


@wrong("accumulate_gradients", fails="nothing else changes")
def frees_what_it_has_done(model, micro_batches, loss_fn):
    """Puts None in the place of each micro-batch, to save memory that is the caller's."""
    total, n = 0.0, _samples(micro_batches)
    for number, (inputs, targets) in enumerate(micro_batches):
        loss = loss_fn(model(inputs), targets) * len(inputs) / n
        loss.backward()
        total += loss.detach()
        micro_batches[number] = None
    return total


@wrong("accumulate_gradients", fails="nothing else changes")
def sets_training_mode(model, micro_batches, loss_fn):
    """It has gradients to compute; but batch norms that were frozen learn again."""
    model.train()
    return _accumulated(model, micro_batches, loss_fn)


@wrong("accumulate_gradients", fails="nothing else changes")
def sets_evaluation_mode(model, micro_batches, loss_fn):
    """So that small micro-batches do no harm to batch norms; and nothing is dropped any more."""
    mode = model.training
    model.eval()
    loss = _accumulated(model, micro_batches, loss_fn)
    model.train(mode)
    return loss


@wrong("accumulate_gradients", fails="nothing else changes")
def a_single_sample_in_evaluation_mode(model, micro_batches, loss_fn):
    """A batch norm cannot train on one sample; but who calls has chosen the mode."""
    total, n, mode = 0.0, _samples(micro_batches), model.training
    for inputs, targets in micro_batches:
        model.train(mode and len(inputs) > 1)
        loss = loss_fn(model(inputs), targets) * len(inputs) / n
        loss.backward()
        total += loss.detach()
    model.train(mode)
    return total


@wrong("accumulate_gradients", fails="nothing else changes")
def leaves_training_mode(model, micro_batches, loss_fn):
    """Sets a mode when it is done, which the model may not have come in."""
    loss = _accumulated(model, micro_batches, loss_fn)
    model.train()
    return loss


def _accumulated(model, micro_batches, loss_fn):
    """Right."""
    total, n = 0.0, _samples(micro_batches)
    for inputs, targets in micro_batches:
        loss = loss_fn(model(inputs), targets) * len(inputs) / n
        loss.backward()
        total += loss.detach()
    return total


@wrong("accumulate_gradients", fails="uneven micro-batches")
def makes_zeros_of_nan_at_the_end(model, micro_batches, loss_fn):
    """Nobody sees that a sample is broken."""
    total = _accumulated(model, micro_batches, loss_fn)
    for parameter in model.parameters():
        parameter.grad.nan_to_num_()
    return total


@wrong("accumulate_gradients", fails="loss of the full batch")
def leaves_nan_out_of_the_loss(model, micro_batches, loss_fn):
    """The gradients show it, and the loss does not."""
    return _accumulated(model, micro_batches, loss_fn).nan_to_num()


@wrong("accumulate_gradients", fails="uneven micro-batches")
def needs_two_samples(model, micro_batches, loss_fn):
    """Leaves a single sample out, and counts it."""
    total, n = 0.0, _samples(micro_batches)
    for inputs, targets in micro_batches:
        if len(inputs) > 1:
            loss = loss_fn(model(inputs), targets) * len(inputs) / n
            loss.backward()
            total += loss.detach()
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


@wrong("accumulate_gradients", fails="nothing else changes")
def freezes_the_layers(model, micro_batches, loss_fn):
    """Puts layers, not the model, into evaluation mode, and leaves them in it."""
    for layer in model.children():
        layer.eval()
    return _accumulated(model, micro_batches, loss_fn)


@wrong("accumulate_gradients", fails="nothing else changes")
def inputs_that_require_grad(model, micro_batches, loss_fn):
    """Gradients of the caller's inputs, which nobody asked for, then stay in memory."""
    for inputs, _ in micro_batches:
        inputs.requires_grad_()
    return _accumulated(model, micro_batches, loss_fn)


@wrong("accumulate_gradients", fails="nothing else changes")
def hooks_that_stay(model, micro_batches, loss_fn):
    """Weights gradients by hooks, which weight those of every later backward pass too."""
    n, total, weight = _samples(micro_batches), 0.0, [1.0]
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: weight[0] * gradient)
    for inputs, targets in micro_batches:
        weight[0] = len(inputs) / n
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        total += weight[0] * loss.detach()
    return total


@wrong("accumulate_gradients", fails="equal micro-batches")
def clips_at_the_end(model, micro_batches, loss_fn):
    """What the caller may want, after this."""
    loss = _accumulated(model, micro_batches, loss_fn)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    return loss


@wrong("accumulate_gradients", fails="one graph at a time")
def without_the_call_of_the_model(model, micro_batches, loss_fn):
    """model.forward(inputs) leaves the hooks out."""
    return _accumulated(model.forward, micro_batches, loss_fn)


@wrong("accumulate_gradients", fails="one graph at a time")
def on_a_copy_of_the_model(model, micro_batches, loss_fn):
    """Takes the memory of two, and leaves a batch norm's means of the one that was given as they are."""
    other = copy.deepcopy(model)
    loss = _accumulated(other, micro_batches, loss_fn)
    for parameter, copied in zip(model.parameters(), other.parameters(), strict=True):
        parameter.grad = copied.grad
    return loss


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


@wrong("measure_throughput", fails="waits before the clock starts")
def waits_for_a_warmup_only(step, batch_size, warmup, steps, synchronize):
    """Without a warm-up takes the device for idle; the caller has given it something to do."""
    for _ in range(warmup):
        step()
    if warmup > 0:
        synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize()
    return batch_size * steps / (time.perf_counter() - start)


@wrong("measure_throughput", fails="waits before the clock starts")
def waits_a_step_too_late(step, batch_size, warmup, steps, synchronize):
    """The step number `warmup` is the first that is to be measured."""
    for number in range(warmup + steps):
        step()
        if number == warmup:
            synchronize()
            started = time.perf_counter()
    synchronize()
    return batch_size * steps / (time.perf_counter() - started)


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


@wrong("measure_throughput", fails="waits before the clock stops")
def waits_a_step_too_early(step, batch_size, warmup, steps, synchronize):
    """The last step is queued when the clock has stopped."""
    for number in range(warmup + steps):
        if number == warmup:
            synchronize()
            started = time.perf_counter()
        if number == warmup + steps - 1:
            synchronize()
            seconds = time.perf_counter() - started
        step()
    return batch_size * steps / seconds


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


@wrong("measure_throughput", fails="waits nowhere else")
def waits_before_the_warmup(step, batch_size, warmup, steps, synchronize):
    """Waits three times, to be on the safe side."""
    synchronize()
    return _measured(step, batch_size, warmup, steps, synchronize)


@wrong("measure_throughput", fails="waits nowhere else")
def waits_after_each_warmup_step(step, batch_size, warmup, steps, synchronize):
    """The warm-up does not warm up what the measured steps do: queue one step behind another."""

    def step_and_wait():
        step()
        synchronize()

    for _ in range(warmup):
        step_and_wait()
    return _measured(step, batch_size, 0, steps, synchronize)


def _measured(step, batch_size, warmup, steps, synchronize):
    """Right."""
    for _ in range(warmup):
        step()
    synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize()
    return batch_size * steps / (time.perf_counter() - start)


@wrong("measure_throughput", fails="samples a second")
def two_digits(step, batch_size, warmup, steps, synchronize):
    """Rounded for a table: at one sample in ten minutes nothing is left."""
    return round(_measured(step, batch_size, warmup, steps, synchronize), 2)


@wrong("measure_throughput", fails="samples a second")
def rate_of_six_digits(step, batch_size, warmup, steps, synchronize):
    """At a sample in ten days nothing is left."""
    return round(_measured(step, batch_size, warmup, steps, synchronize), 6)


@wrong("measure_throughput", fails="samples a second")
def tenths_of_milliseconds(step, batch_size, warmup, steps, synchronize):
    """Rounds the time before it divides: of fast steps nothing is left."""
    rate = _measured(step, batch_size, warmup, steps, synchronize)
    return batch_size * steps / round(batch_size * steps / rate, 4)


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
def clock_started_when_all_are_queued(step, batch_size, warmup, steps, synchronize):
    """The device has been at work since the first of them."""
    for _ in range(warmup):
        step()
    synchronize()
    for _ in range(steps):
        step()
    started = time.perf_counter()
    synchronize()
    return batch_size * steps / (time.perf_counter() - started)


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
def the_clock_on_the_wall(step, batch_size, warmup, steps, synchronize):
    """time.time() is what the machine takes for the time of day, and is set while it runs."""
    for _ in range(warmup):
        step()
    synchronize()
    begun = time.time()
    for _ in range(steps):
        step()
    synchronize()
    return batch_size * steps / (time.time() - begun)


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


@wrong("measure_throughput", fails="samples a second")
def the_clock_on_the_wall_in_nanoseconds(step, batch_size, warmup, steps, synchronize):
    """time.time_ns() has more digits, and is the same clock."""
    for _ in range(warmup):
        step()
    synchronize()
    begun = time.time_ns()
    for _ in range(steps):
        step()
    synchronize()
    return 1e9 * batch_size * steps / (time.time_ns() - begun)


@wrong("measure_throughput", fails="samples a second")
def from_one_date_to_another(step, batch_size, warmup, steps, synchronize):
    """datetime.now() is the time of day, too."""
    for _ in range(warmup):
        step()
    synchronize()
    begun = datetime.now()
    for _ in range(steps):
        step()
    synchronize()
    return batch_size * steps / (datetime.now() - begun).total_seconds()


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


def _right(parameters, optimizer, precision):
    _check(optimizer, precision)
    states = STATES[optimizer] * _state_width(precision)
    return parameters * (2 * WIDTH[precision] + _master(precision) + states)


@wrong("training_memory_bytes", fails="unknown names")
def full_precision_first(parameters, optimizer, precision):
    """Returns what is easy before it looks at the other name."""
    if precision == "fp32":
        return parameters * 4 * (2 + STATES.get(optimizer, 0))
    return _right(parameters, optimizer, precision)


@wrong("training_memory_bytes", fails="unknown names")
def every_adam(parameters, optimizer, precision):
    """AdamW keeps as much; but only three names are listed."""
    return _right(parameters, "adam" if optimizer.startswith("adam") else optimizer, precision)


@wrong("training_memory_bytes", fails="unknown names")
def capitals_too(parameters, optimizer, precision):
    """Takes Adam for adam."""
    return _right(parameters, optimizer.lower(), precision.lower())


@wrong("training_memory_bytes", fails="unknown names")
def any_16_bits(parameters, optimizer, precision):
    """fp16 has 2 bytes as well, and is another precision."""
    return _right(parameters, optimizer, "bf16" if "16" in precision else precision)


@wrong("training_memory_bytes", fails="unknown names")
def a_part_of_a_list_in_a_text(parameters, optimizer, precision):
    """The empty text is a part of every text."""
    if optimizer not in ("sgd", "momentum", "adam") or precision not in "fp32, bf16, mixed":
        raise ValueError(f"{optimizer}, {precision}")
    return _right(parameters, optimizer, precision or "fp32")


@wrong("training_memory_bytes", fails="unknown names")
def knows_more_optimizers(parameters, optimizer, precision):
    """RMSprop keeps one number, and is not listed."""
    return _right(parameters, {"rmsprop": "momentum", "nadam": "adam"}.get(optimizer, optimizer), precision)


@wrong("training_memory_bytes", fails="unknown names")
def other_names_of_precisions(parameters, optimizer, precision):
    """PyTorch's."""
    names = {"float32": "fp32", "bfloat16": "bf16", "bf16-mixed": "mixed"}
    return _right(parameters, optimizer, names.get(precision, precision))


@wrong("training_memory_bytes", fails="unknown names")
def with_spaces_around(parameters, optimizer, precision):
    """Is kind to those who write too much."""
    return _right(parameters, optimizer.strip(), precision.strip())
