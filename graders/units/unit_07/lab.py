"""What the graders of unit 07's deadlock lab share."""

from collections.abc import Sequence

from torch import Tensor

from course_lib.runtime.request import per_rank
from graders.grading import compare
from graders.grading.answer import Answer, Observed, PlainData
from graders.grading.exercise import Finding
from graders.grading.rng import Rng

ENDS = "comes to an end"


CAUSES = {
    "swap": "all receive first",
    "shift": "all send first",
    "report": "a collective that some ranks skip",
    "grid_sums": "groups made in different orders",
    "collect": "more receives than sends",
    "chain": "a barrier after an error",
}
"""The programs of the lab, by name, and why each hangs."""


def cause(program: str, named: PlainData) -> Finding:
    """Passes if `named`, the student's dictionary, has the program's cause."""
    if type(named) is not dict:
        return Finding(False, f"returned {named!r:.60}; expected a dictionary with six entries.")
    seen = named.get(program)
    # The right one is not told: there are only six.
    return Finding(seen == CAUSES[program], f'the cause named for {program} is "{seen!s:.60}".')


def tensors(rng: Rng, ranks: int, length: int = 6) -> list[Tensor]:
    """One tensor a rank."""
    return [rng.normal(length) for _ in range(ranks)]


def launched(answer: Answer, given: Sequence[object], *more: object) -> Observed:
    """The answer on as many ranks as `given` has items, each with its own, and with `more` on all of them."""
    return answer.launch("unit_07.mended", per_rank(given), *more, ranks=len(given))


def ends(observed: Sequence[Observed]) -> Finding:
    """Passes: who hangs never comes here. A message that nobody received counts as not ended."""
    lost = [text for run in observed for text in run.unmatched]
    if lost:
        return Finding(False, f"All ranks returned, but {len(lost)} calls are still open: {lost[0]}.")
    sizes = ", ".join(str(len(run.results)) for run in observed)
    return Finding(True, f"All ranks returned, in worlds of {sizes}.")


def returned(observed: Observed, expected: Sequence[Tensor], what: str) -> Finding:
    """Passes if each rank returned its tensor of `expected`."""
    seen = [told["result"] for told in observed.results]
    return compare.close_on_all_ranks(seen, expected, what)


def inputs_kept(observed: Observed, given: Sequence[Tensor]) -> Finding:
    """Passes if each rank's argument is as it was."""
    seen = [told["argument"] for told in observed.results]
    return compare.close_on_all_ranks(seen, given, "x after the call")


def calls_once(observed: Sequence[Observed], name: str) -> Finding:
    """Passes if every rank makes one call, of this name."""
    for run in observed:
        for rank in range(len(run.results)):
            calls = run.calls(rank)
            if calls != [name]:
                text = f"rank {rank} of {len(run.results)} calls {', '.join(calls) or 'nothing'}"
                return Finding(False, f"{text}; expected one {name} on every rank.")
    return Finding(True, f"Every rank calls {name} once.")


def barriers(observed: Observed) -> Finding:
    """Passes if every rank makes one barrier, as its last call."""
    for rank in range(len(observed.results)):
        calls = observed.calls(rank)
        if calls.count("barrier") != 1 or calls[-1] != "barrier":
            return Finding(False, f"rank {rank} calls {', '.join(calls) or 'nothing'}.")
    return Finding(True, "Every rank ends with one barrier.")


def numbers(observed: Observed, expected: Sequence[float | None], what: str, rtol: float = 1e-5) -> Finding:
    """Passes if each rank returned its number, or None where None is expected."""
    finding = Finding(False, "")
    for rank, wanted in enumerate(expected):
        seen = observed.results[rank]["result"]
        name = f"{what} on rank {rank}"
        if wanted is None:
            finding = Finding(seen is None, f"{name} is {seen!r:.60}; expected None.")
        else:
            finding = compare.near(seen, wanted, name, rtol=rtol)
        if not finding.passed:
            return finding
    return finding


def one_message_each(observed: Sequence[Observed]) -> Finding:
    """Passes if each rank sends one message and receives one, and calls nothing else."""
    for run in observed:
        for rank in range(len(run.results)):
            calls = sorted(run.calls(rank))
            if calls != ["recv", "send"]:
                text = f"rank {rank} of {len(run.results)} calls {', '.join(calls) or 'nothing'}"
                return Finding(False, f"{text}; expected one send and one recv.")
    return Finding(True, "Each rank sends once and receives once.")
