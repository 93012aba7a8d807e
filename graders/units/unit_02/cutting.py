"""Unit 02, a model cut into buckets: which parameters must be in which."""

from collections.abc import Sequence
from dataclasses import dataclass

from graders.grading.kit import Finding, PlainData
from graders.units.unit_02.training import greedy_buckets


@dataclass(frozen=True, slots=True)
class Cut:
    """A model to be put into buckets. sizes: of all parameters in bytes. trainable: the numbers of some."""

    sizes: Sequence[int]
    trainable: tuple[int, ...]
    limit: int

    def complete(self, seen: PlainData) -> Finding:
        """Passes if `seen` is a list of lists with the trainable parameters once each."""
        if type(seen) is not list or not all(type(bucket) is list for bucket in seen):
            return Finding(False, f"got {seen!r:.80}; expected a list of buckets, each a list of parameters.")
        numbers = [number for bucket in seen for number in bucket]
        passed = sorted(numbers, key=str) == sorted(self.trainable, key=str)
        text = f"of {len(self.sizes)} parameters those with the numbers {list(self.trainable)} are trainable"
        return Finding(passed, f"{text}, and the buckets are {seen}.")

    def reversed(self, seen: list[list[int]]) -> Finding:
        """Passes if the parameters come from the last to the first."""
        numbers = [number for bucket in seen for number in bucket]
        passed = numbers == sorted(numbers, reverse=True)
        return Finding(passed, f"the parameters, numbered as in model.parameters(), are put into {seen}.")

    def full(self, seen: list[list[int]]) -> Finding:
        """Passes if each bucket was closed before the parameter that would take it above the limit."""
        sizes = [self.sizes[number] for number in self.trainable[::-1]]
        parameters = f"with at most {self.limit} bytes, and parameters of {', '.join(map(str, sizes))} bytes"
        empty = [place for place, bucket in enumerate(seen) if not bucket]
        if empty:
            return Finding(False, f"{parameters}, bucket {empty[0]} is empty.")
        got, expected = (
            [sum(self.sizes[number] for number in bucket) for bucket in seen],
            greedy_buckets(sizes, self.limit),
        )
        text = f"{parameters}, the buckets have {got} bytes; expected {expected}"
        return Finding(got == expected, f"{text}.")
