"""Unit 04, six steps: a program for one GPU that `horovodrun -np 2` runs."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from course_lib.beside import missing
from graders.grading.kit import (
    Answer,
    AnswerFailed,
    Criterion,
    FailureKind,
    Finding,
    Findings,
    MachineLacks,
    Rng,
    compare,
    exercise,
)
from graders.units.models import load_values
from graders.units.unit_04 import drivers
from graders.units.unit_04.optimizers import PlainSGD
from graders.units.unit_04.replies import ProcessReply

RANKS = 2
SECONDS = 90.0
"""What a run may take; `horovodrun` itself gives up before."""


@exercise(
    minutes=60,
    difficulty=4,
    rubric=(
        Criterion(
            "its part of the samples",
            2,
            "Every process takes other samples, and together they take all of them once an epoch.",
        ),
        Criterion(
            "the same start",
            2,
            "Broadcast from rank 0, after the model and the optimizer exist and the checkpoint was read.",
        ),
        Criterion(
            "averaged gradients",
            2,
            "Wrap the optimizer: step() is to wait for the average.",
            needs=("the same start",),
        ),
        Criterion(
            "scaled learning rate",
            1,
            "Two processes take half as many steps, each twice as long.",
            needs=("averaged gradients",),
        ),
        Criterion("one GPU a process", 1, "GPUs are counted on each node anew: use_gpu(hvd.local_rank())."),
        Criterion(
            "accuracy over all",
            1,
            "Add up what every rank got right, on its part of the test samples.",
            needs=("averaged gradients",),
        ),
        Criterion("checkpoints of rank 0", 1, "Rank 0 writes after every epoch; nobody else does."),
        Criterion(
            "goes on",
            2,
            "Only rank 0 has the checkpoint: weights, the optimizer's state, and the number of epochs have "
            "to reach the others.",
            needs=("scaled learning rate", "checkpoints of rank 0"),
        ),
    ),
    hints=(
        "Which lines of train_alone would do something else on another process?",
        "What does rank 1 know when it finds no checkpoint, and rank 0 has one?",
        "Horovod broadcasts parameters, an optimizer's state, and any object: which calls are these?",
    ),
)
def six_steps(answer: Answer, rng: Rng) -> Findings:
    """A training of two epochs, and one that goes on for a third."""
    if lack := missing("horovod"):
        raise MachineLacks(lack)
    case = Case.drawn(rng)
    first = case.run(answer, epochs=2)
    yield "its part of the samples", case.samples(first)
    yield "the same start", case.same_start(first)
    yield "averaged gradients", averaged(first)
    yield "scaled learning rate", case.trained(first, epochs=2)
    yield "one GPU a process", one_gpu_each(first)
    yield "accuracy over all", case.accuracies(first)
    yield "checkpoints of rank 0", case.checkpoints(first)
    yield "goes on", case.goes_on(first, case.run(answer, epochs=3, checkpoint=first[0].written))


@dataclass(frozen=True, slots=True)
class Case:
    """values[r]: weight [3, 6] and bias [3] of rank r's new model. data: see `train_alone`."""

    values: list[list[Tensor]]
    data: dict[str, Tensor]

    @staticmethod
    def drawn(rng: Rng) -> "Case":
        """Training samples for two to four batches a rank; the test samples do not divide by the ranks."""
        values = [[rng.normal(3, 6), rng.normal(3)] for _ in range(RANKS)]
        train, test = 4 * RANKS * rng.integer(2, 4), 2 * rng.integer(10, 20) + 1
        data = {
            "inputs": rng.normal(train, 6),
            "labels": rng.integers(0, 2, train),
            "test_inputs": rng.normal(test, 6),
            "test_labels": rng.integers(0, 2, test),
        }
        return Case(values, data)

    def run(self, answer: Answer, epochs: int, checkpoint: bytes = b"") -> list[ProcessReply]:
        """What the processes of one run did."""
        given = self.values, self.data, epochs, checkpoint
        told = answer.call(drivers.under_horovodrun, *given, timeout=SECONDS)
        return [process for process, _ in compare.side_by_side(told, range(RANKS))]

    def samples(self, run: list[ProcessReply]) -> Finding:
        """Passes if each rank trained on its part of the samples, in order, four a batch, in both epochs."""
        for rank, process in enumerate(run):
            if not process.seen:
                return Finding(False, f"rank {rank} has trained on nothing.")
            own = self.data["inputs"][rank::RANKS]
            if not compare.same(process.seen, 2 * list(torch.split(own, 4))):
                numbers = [_numbers(self.data["inputs"], batch) for batch in process.seen]
                wanted = list(range(rank, len(self.data["inputs"]), RANKS))
                text = f"rank {rank} trained on {compare.counted(len(numbers), 'batch')[:-1]}"
                return Finding(False, f"{text}es, of the samples {numbers[:4]}; its samples are {wanted}.")
        return Finding(True, "Each rank trains on its own samples, four a batch.")

    def same_start(self, run: list[ProcessReply]) -> Finding:
        """Passes if the first batch finds rank 0's weights on every rank."""
        wanted = self.values[0][0]
        starts = [process.starts[0] if process.starts else None for process in run]
        return compare.close_on_all_ranks(starts, [wanted] * RANKS, "the weight before the first batch", 0, 0)

    def trained(self, run: list[ProcessReply], epochs: int) -> Finding:
        """Passes if every rank has the weights of one process with batches of eight and twice the rate."""
        model = nn.Linear(6, 3)
        load_values(model.parameters(), self.values[0])
        self._train(model, PlainSGD(model.parameters(), 0.05 * RANKS), epochs)
        return _weights_as(run, list(model.parameters()))

    def _train(self, model: nn.Module, optimizer: PlainSGD, epochs: int) -> None:
        for _ in range(epochs):
            whole = (torch.split(self.data[name], 4 * RANKS) for name in ("inputs", "labels"))
            batches = zip(*whole, strict=True)
            for inputs, labels in batches:
                optimizer.zero_grad()
                functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
                optimizer.step()

    def accuracies(self, run: list[ProcessReply]) -> Finding:
        """Passes if every rank returned its model, and the accuracy of rank 0's over all test samples."""
        model = _model_of(run[0])
        labels = self.data["test_labels"]
        expected = (model(self.data["test_inputs"]).argmax(1) == labels).sum().item() / len(labels)
        return compare.first_failure(
            finding
            for rank, process in enumerate(run)
            for finding in (
                Finding(
                    process.returned,
                    f"rank {rank} returned {process.accuracy!r:.80}; expected (model, accuracy).",
                ),
                compare.near(process.accuracy, expected, f"the accuracy on rank {rank}"),
            )
        )

    def checkpoints(self, run: list[ProcessReply]) -> Finding:
        """Passes if rank 0 wrote one after each epoch, with its weights, and no other rank wrote anything."""
        for rank, process in enumerate(run[1:], start=1):
            if process.files:
                return Finding(False, f"rank {rank} wrote {', '.join(process.files)}; only rank 0 writes.")
        first = run[0]
        if first.files != ["checkpoint.pt"] or first.checkpoint is None:
            return Finding(False, f"rank 0's folder holds {first.files}; expected checkpoint.pt.")
        batches = len(first.saved) // 2
        if len(set(first.saved[:batches])) != 1 or not all(first.saved[batches:]) or first.saved[0]:
            return Finding(False, "When the second epoch began, that of the first had not been saved.")
        if not compare.same(first.checkpoint.get("epochs"), 2):
            return Finding(
                False, f"the checkpoint says {first.checkpoint.get('epochs')!r:.20} epochs; expected 2."
            )
        saved = first.checkpoint.get("model")
        same = compare.same(saved, first.weights)
        return Finding(same, f"rank 0's checkpoint {'has' if same else 'does not have'} the trained weights.")

    def goes_on(self, first: list[ProcessReply], later: list[ProcessReply]) -> Finding:
        """Passes if the second run took one epoch from the first one's checkpoint, on all ranks."""
        saved = first[0].checkpoint or {}
        momenta = saved.get("momentum")
        if type(momenta) is not list or not all(type(each) is Tensor for each in momenta):
            return Finding(False, "the checkpoint of the first run has no momentum to go on with.")
        model = _model_of(first[0])
        parameters = list(model.parameters())
        if [each.shape for each in momenta] != [each.shape for each in parameters]:
            return Finding(False, "the checkpoint of the first run has another momentum than SGD's.")
        optimizer = PlainSGD(parameters, 0.05 * RANKS)
        for parameter, momentum in zip(parameters, momenta, strict=True):
            optimizer.state[parameter] = {"momentum": momentum}
        counts = [len(process.seen) for process in later]
        wanted = len(self.data["inputs"]) // (4 * RANKS)
        if counts != [wanted] * RANKS:
            text = f"With two of three epochs done, the ranks trained on {counts} batches"
            return Finding(False, f"{text}; expected {wanted} each.")
        self._train(model, optimizer, 1)
        return _weights_as(later, parameters)


def _model_of(process: ProcessReply) -> nn.Module:
    """The model that a process has trained. Raises AnswerFailed if it has other parameters."""
    model = nn.Linear(6, 3)
    if [each.shape for each in process.weights] != [each.shape for each in model.parameters()]:
        raise AnswerFailed(FailureKind.UNREADABLE, "What came back are not a model's parameters.")
    load_values(model.parameters(), process.weights)
    return model


def _numbers(inputs: Tensor, batch: Tensor) -> list[int]:
    """Which samples of inputs [n, 6] a batch [B, 6] holds; -1 for what is none."""
    if batch.dim() != 2 or batch.shape[1:] != inputs.shape[1:]:
        return []
    found = (batch[:, None] == inputs[None]).all(2)
    return [int(row.nonzero()[0]) if row.any() else -1 for row in found]


def _weights_as(run: list[ProcessReply], expected: list[nn.Parameter]) -> Finding:
    wanted = [each.detach() for each in expected]
    return compare.first_failure(
        compare.close(got, value, f"parameter {number} on rank {rank}", 1e-4, 1e-5)
        for rank, process in enumerate(run)
        for number, (got, value) in enumerate(compare.side_by_side(process.weights, wanted))
    )


def averaged(run: list[ProcessReply]) -> Finding:
    """Passes if the first step, from equal weights, and all steps together lead to equal weights on all
    ranks.
    """
    for rank, process in enumerate(run):
        if len(process.starts) < 2 or not process.weights:
            return Finding(False, f"rank {rank} took no two steps.")
    seconds, weights = [each.starts[1] for each in run], [each.weights[0] for each in run]
    second = compare.close_on_all_ranks(seconds, [seconds[0]] * RANKS, "after one step, the weight")
    last = compare.close_on_all_ranks(weights, [weights[0]] * RANKS, "in the end, the weight")
    return compare.first_failure((second, last), "After every step all ranks have the same weights.")


def one_gpu_each(processes: list[ProcessReply]) -> Finding:
    """Passes if every process uses GPU 0: each stands for a node of its own."""
    for process in processes:
        if not process.gpus or not all(type(gpu) is int and gpu == 0 for gpu in process.gpus):
            text = f"On two nodes of one GPU each a process used GPU {compare.shown(process.gpus)}"
            return Finding(False, f"{text}; expected [0].")
    return Finding(True, "On two nodes of one GPU each, every process uses GPU 0.")
