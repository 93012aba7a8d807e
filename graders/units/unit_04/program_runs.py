"""Unit 04, six steps: what two processes drew, did and left, against one process that trains alone."""

from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graders.grading.kit import Finding, Rng, compare
from graders.units.models import load_values, state_of
from graders.units.optimizers import PlainSGD
from graders.units.unit_04.models import Shifted
from graders.units.unit_04.replies import ProcessReply

RANKS = 2


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

    def samples(self, run: list[ProcessReply]) -> Finding:
        """Passes if each rank trained on its part of the samples, in order, four a batch, in both epochs."""
        count = len(self.data["inputs"])
        return compare.first_failure(
            compare.equal(
                self._seen(process, "inputs"),
                2 * [list(range(first, first + 4 * RANKS, RANKS)) for first in range(rank, count, 4 * RANKS)],
                f"the samples in the batches of rank {rank}",
            )
            for rank, process in enumerate(run)
        )

    def _seen(self, process: ProcessReply, name: str) -> list[list[int]]:
        """The samples of data[name] in each call of the model that had no others."""
        found = []
        for inputs in process.calls:
            if inputs.dim() == 2 and inputs.shape[1] == 6:
                same = (inputs[:, None] == self.data[name][None]).all(2)
                if len(same) and same.any(1).all():
                    found.append([int(row.nonzero()[0]) for row in same])
        return found

    def same_start(self, run: list[ProcessReply]) -> Finding:
        """Passes if the first batch finds rank 0's weights and buffer on every rank."""
        weight, _, shift = self.values[0]

        def one(place: int, wanted: Tensor, name: str) -> Finding:
            starts = [process.start[place] if process.start[place:] else None for process in run]
            what = f"the {name} before the first batch"
            return compare.close_on_all_ranks(starts, [wanted] * RANKS, what, 0, 0)

        return compare.first_failure((one(0, weight, "weight"), one(1, shift, "buffer")))

    def trained(self, run: list[ProcessReply]) -> Finding:
        """Passes if every rank has the weights of one process with batches of eight and twice the rate."""
        return self._weights_after(run, self.values[0], [], epochs=2)

    def _weights_after(
        self, run: list[ProcessReply], values: list[Tensor], momenta: list[Tensor], epochs: int
    ) -> Finding:
        """Passes if every rank has the weights to which these, and this momentum, come after some epochs."""
        model = Shifted(values)
        optimizer = PlainSGD(model.parameters(), 0.05 * RANKS, decay=0.01)
        for parameter, momentum in zip(model.parameters(), momenta, strict=False):
            optimizer.state[parameter] = {"momentum": momentum}
        for _ in range(epochs):
            whole = (torch.split(self.data[name], 4 * RANKS) for name in ("inputs", "labels"))
            for inputs, labels in zip(*whole, strict=True):
                optimizer.zero_grad()
                functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        wanted = [each.detach() for each in state_of(model)]
        return compare.first_failure(
            compare.close(got, value, f"tensor {number} of the model on rank {rank}", 1e-4, 1e-5)
            for rank, process in enumerate(run)
            for number, (got, value) in enumerate(compare.side_by_side(process.weights, wanted))
        )

    def accuracies(self, run: list[ProcessReply]) -> Finding:
        """Passes if every rank returned its model, and the accuracy of rank 0's over all test samples, of
        which it tested its part.
        """
        model, labels = Shifted(self.values[0]), self.data["test_labels"]
        if not _alike(run[0].weights, state_of(model)):
            return Finding(False, "What came back are not a model's parameters.")
        load_values(state_of(model), run[0].weights)
        expected = (model(self.data["test_inputs"]).argmax(1) == labels).sum().item() / len(labels)
        findings = []
        for rank, process in enumerate(run):
            said = f"rank {rank} returned {process.accuracy!r:.80}; expected (model, accuracy)."
            tested = sorted(chain(*self._seen(process, "test_inputs")))
            part = list(range(rank, len(labels), RANKS))
            findings += [
                Finding(process.returned, said),
                compare.near(process.accuracy, expected, f"the accuracy on rank {rank}"),
                compare.equal(tested, part, f"the samples that rank {rank} tested on"),
            ]
        return compare.first_failure(findings)

    def checkpoints(self, run: list[ProcessReply]) -> Finding:
        """Passes if rank 0 wrote a checkpoint of two epochs, with its weights, and no other rank wrote."""
        for rank, process in enumerate(run[1:], start=1):
            if process.files:
                return Finding(False, f"rank {rank} wrote {', '.join(process.files)}; only rank 0 writes.")
        first = run[0]
        if first.files != ["checkpoint.pt"] or first.checkpoint is None:
            return Finding(False, f"rank 0's folder holds {first.files}; expected checkpoint.pt.")
        if not compare.same(epochs := first.checkpoint.get("epochs"), 2):
            return Finding(False, f"the checkpoint says {epochs!r:.20} epochs; expected 2.")
        same = compare.same(first.checkpoint.get("model"), first.weights)
        return Finding(same, f"rank 0's checkpoint {'has' if same else 'does not have'} the trained weights.")

    def goes_on(self, first: list[ProcessReply], later: list[ProcessReply]) -> Finding:
        """Passes if the second run took one epoch from the first one's checkpoint, on all ranks."""
        momenta: Any = (first[0].checkpoint or {}).get("momentum")
        if not _alike(momenta, self.values[0][:2]):
            return Finding(False, "the checkpoint of the first run has no momentum to go on with.")
        counts = [len(self._seen(process, "inputs")) for process in later]
        wanted = len(self.data["inputs"]) // (4 * RANKS)
        if counts != [wanted] * RANKS:
            text = f"With one of two epochs done, the ranks trained on {counts} batches"
            return Finding(False, f"{text}; expected {wanted} each.")
        return self._weights_after(later, first[0].weights, momenta, epochs=1)


def _alike(seen: Any, wanted: list[Tensor]) -> bool:
    """Whether these are tensors of the same shapes."""
    return type(seen) is list and [getattr(each, "shape", None) for each in seen] == [
        each.shape for each in wanted
    ]


def averaged(run: list[ProcessReply]) -> Finding:
    """Passes if equal weights lead to equal weights on all ranks."""
    weights = [process.weights[0] if process.weights else None for process in run]
    wanted = weights[0] if weights[0] is not None else torch.empty(0)
    return compare.close_on_all_ranks(weights, [wanted] * RANKS, "in the end, the weight")


def one_gpu_each(run: list[ProcessReply]) -> Finding:
    """Passes if every process uses the card of its local rank, which counts against the ranks here."""
    for rank, process in enumerate(run):
        local = RANKS - 1 - rank
        if not process.gpus or not all(type(gpu) is int and gpu == local for gpu in process.gpus):
            text = f"rank {rank}, which has local rank {local}, used GPU {compare.shown(process.gpus)}"
            return Finding(False, f"{text}; expected [{local}].")
    return Finding(True, "Every process uses the GPU of its local rank, which is not its rank here.")
