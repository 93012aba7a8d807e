"""Unit 04, six steps: what two processes drew, did and left, against one process that trains alone."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from graders.grading.kit import Finding, Rng, compare
from graders.units.optimizers import PlainSGD
from graders.units.unit_04.models import Shifted
from graders.units.unit_04.program_models import (
    RANKS,
    all_of,
    model_of,
    optimizer_of,
    samples_in,
    starts_from,
    weights_as,
)
from graders.units.unit_04.replies import ModelCall, ProcessReply


@dataclass(frozen=True, slots=True)
class Case:
    """values[r]: weight [3, 6], bias [3] and shift [6] of rank r's new model. data: see `train_alone`."""

    values: list[list[Tensor]]
    data: dict[str, Tensor]

    @staticmethod
    def drawn(rng: Rng) -> "Case":
        """Test samples do not divide by the ranks; of most of them rank 0's new model knows the label."""
        values = [[rng.normal(3, 6), rng.normal(3), rng.normal(6)] for _ in range(RANKS)]
        train, test = 4 * RANKS * rng.integer(2, 4), 2 * rng.integer(10, 20) + 1
        test_inputs = rng.normal(test, 6)
        data = {
            "inputs": rng.normal(train, 6),
            "labels": rng.integers(0, 2, train),
            "test_inputs": test_inputs,
            "test_labels": Shifted(values[0])(test_inputs).argmax(1),
        }
        return Case(values, data)

    def _calls(self, process: ProcessReply, test: bool) -> list[ModelCall]:
        """Those of the model with test samples only, or all others."""
        inputs = self.data["test_inputs"]
        return [call for call in process.calls if all_of(inputs, call.inputs) == test]

    def samples(self, run: list[ProcessReply]) -> Finding:
        """Passes if each rank trained on its part of the samples, in order, four a batch, in both epochs."""
        for rank, process in enumerate(run):
            batches = [call.inputs for call in self._calls(process, test=False)]
            if not batches:
                return Finding(False, f"rank {rank} has trained on nothing.")
            own = self.data["inputs"][rank::RANKS]
            if not compare.same(batches, 2 * list(torch.split(own, 4))):
                numbers = [samples_in(self.data["inputs"], batch) for batch in batches]
                wanted = list(range(rank, len(self.data["inputs"]), RANKS))
                text = f"rank {rank} trained on {len(numbers)} batches, of the samples {numbers[:4]}"
                return Finding(False, f"{text}; its samples are {wanted}.")
        return Finding(True, "Each rank trains on its own samples, four a batch.")

    def same_start(self, run: list[ProcessReply]) -> Finding:
        """Passes if the first batch finds rank 0's weights and buffer on every rank."""
        weight, _, shift = self.values[0]

        def one(place: int, wanted: Tensor, name: str) -> Finding:
            starts = [process.starts[0][place] if process.starts else None for process in run]
            what = f"the {name} before the first batch"
            return compare.close_on_all_ranks(starts, [wanted] * RANKS, what, 0, 0)

        return compare.first_failure((one(0, weight, "weight"), one(1, shift, "buffer")))

    def trained(self, run: list[ProcessReply]) -> Finding:
        """Passes if every rank has the weights of one process with batches of eight and twice the rate."""
        model = Shifted(self.values[0])
        self._train(model, optimizer_of(model), epochs=2)
        return weights_as(run, model)

    def _train(self, model: nn.Module, optimizer: PlainSGD, epochs: int) -> None:
        for _ in range(epochs):
            whole = (torch.split(self.data[name], 4 * RANKS) for name in ("inputs", "labels"))
            batches = zip(*whole, strict=True)
            for inputs, labels in batches:
                optimizer.zero_grad()
                functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
                optimizer.step()

    def accuracies(self, run: list[ProcessReply]) -> Finding:
        """Passes if every rank returned its model, and the accuracy of rank 0's over all test samples, of
        which it tested its part, in evaluation mode.
        """
        model = model_of(run[0])
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
                self._tested(rank, process),
            )
        )

    def _tested(self, rank: int, process: ProcessReply) -> Finding:
        tests = self._calls(process, test=True)
        seen = sorted(n for call in tests for n in samples_in(self.data["test_inputs"], call.inputs))
        wanted = list(range(rank, len(self.data["test_inputs"]), RANKS))
        if seen != wanted:
            return Finding(False, f"rank {rank} tested on the samples {seen}; its part are {wanted}.")
        mode = "training" if any(call.training for call in tests) else "evaluation"
        return Finding(mode == "evaluation", f"rank {rank} tested in {mode} mode.")

    def checkpoints(self, run: list[ProcessReply]) -> Finding:
        """Passes if rank 0 wrote one after each epoch, with its weights, and no other rank wrote anything."""
        for rank, process in enumerate(run[1:], start=1):
            if process.files:
                return Finding(False, f"rank {rank} wrote {', '.join(process.files)}; only rank 0 writes.")
        first = run[0]
        if first.files != ["checkpoint.pt"] or first.checkpoint is None:
            return Finding(False, f"rank 0's folder holds {first.files}; expected checkpoint.pt.")
        saved = [call.saved for call in self._calls(first, test=False)]
        batches = len(saved) // 2
        if any(saved[:batches]) or not all(saved[batches:]):
            return Finding(False, "When the second epoch began, that of the first had not been saved.")
        if not compare.same(epochs := first.checkpoint.get("epochs"), 2):
            return Finding(False, f"the checkpoint says {epochs!r:.20} epochs; expected 2.")
        same = compare.same(first.checkpoint.get("model"), first.weights)
        return Finding(same, f"rank 0's checkpoint {'has' if same else 'does not have'} the trained weights.")

    def goes_on(self, first: list[ProcessReply], later: list[ProcessReply]) -> Finding:
        """Passes if the second run took one epoch from the first one's checkpoint, on all ranks."""
        saved = first[0].checkpoint or {}
        momenta = saved.get("momentum")
        if type(momenta) is not list or not all(type(each) is Tensor for each in momenta):
            return Finding(False, "the checkpoint of the first run has no momentum to go on with.")
        model = model_of(first[0])
        parameters = list(model.parameters())
        if [each.shape for each in momenta] != [each.shape for each in parameters]:
            return Finding(False, "the checkpoint of the first run has another momentum than SGD's.")
        optimizer = optimizer_of(model)
        for parameter, momentum in zip(parameters, momenta, strict=True):
            optimizer.state[parameter] = {"momentum": momentum}
        counts = [len(self._calls(process, test=False)) for process in later]
        wanted = len(self.data["inputs"]) // (4 * RANKS)
        if counts != [wanted] * RANKS:
            text = f"With one of two epochs done, the ranks trained on {counts} batches"
            return Finding(False, f"{text}; expected {wanted} each.")
        if not (start := starts_from(later, model)).passed:
            return start
        self._train(model, optimizer, 1)
        return weights_as(later, model)


def averaged(run: list[ProcessReply]) -> Finding:
    """Passes if the first step, from equal weights, and all steps together lead to equal weights on all
    ranks.
    """
    for rank, process in enumerate(run):
        if len(process.starts) < 2 or not process.weights:
            return Finding(False, f"rank {rank} took no two steps.")
    seconds, weights = [each.starts[1][0] for each in run], [each.weights[0] for each in run]
    second = compare.close_on_all_ranks(seconds, [seconds[0]] * RANKS, "after one step, the weight")
    last = compare.close_on_all_ranks(weights, [weights[0]] * RANKS, "in the end, the weight")
    return compare.first_failure((second, last), "After every step all ranks have the same weights.")


def one_gpu_each(run: list[ProcessReply]) -> Finding:
    """Passes if every process uses the card of its local rank, which counts against the ranks here."""
    for rank, process in enumerate(run):
        local = RANKS - 1 - rank
        if not process.gpus or not all(type(gpu) is int and gpu == local for gpu in process.gpus):
            text = f"rank {rank}, which has local rank {local}, used GPU {compare.shown(process.gpus)}"
            return Finding(False, f"{text}; expected [{local}].")
    return Finding(True, "Every process uses the GPU of its local rank, which is not its rank here.")
