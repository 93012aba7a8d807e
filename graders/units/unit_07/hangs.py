"""What unit 07's graders expect of programs that hung and were mended."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster
from course_lib.runtime.request import per_rank
from graders.grading import compare
from graders.grading.answer import Answer, AnswerFailed, Observed, PlainData
from graders.grading.exercise import Finding
from graders.grading.rng import Rng
from graders.units.unit_07.collectives import MEASURED, duration_of, seconds

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
        return Finding(program, False, f"returned {named!r:.60}; expected a dictionary with six entries.")
    seen = named.get(program)
    # The right one is not told: there are only six.
    return Finding(program, seen == CAUSES[program], f'the cause named for {program} is "{seen!s:.60}".')


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
        return Finding(ENDS, False, f"All ranks returned, but {len(lost)} calls are still open: {lost[0]}.")
    sizes = ", ".join(str(len(run.results)) for run in observed)
    return Finding(ENDS, True, f"All ranks returned, in worlds of {sizes}.")


def returned(criterion: str, observed: Observed, expected: Sequence[Tensor], what: str) -> Finding:
    """Passes if each rank returned its tensor of `expected`."""
    seen = [told["result"] for told in observed.results]
    return compare.close_on_all_ranks(criterion, seen, expected, what)


def inputs_kept(criterion: str, observed: Observed, given: Sequence[Tensor]) -> Finding:
    """Passes if each rank's argument is as it was."""
    seen = [told["argument"] for told in observed.results]
    return compare.close_on_all_ranks(criterion, seen, given, "x after the call")


def one_message_each(criterion: str, observed: Sequence[Observed]) -> Finding:
    """Passes if each rank sends one message and receives one, and calls nothing else."""
    for run in observed:
        for rank in range(len(run.results)):
            calls = sorted(run.calls(rank))
            if calls != ["recv", "send"]:
                text = f"rank {rank} of {len(run.results)} calls {', '.join(calls) or 'nothing'}"
                return Finding(criterion, False, f"{text}; expected one send and one recv.")
    return Finding(criterion, True, "Each rank sends once and receives once.")


def all_at_once(criterion: str, answer: Answer, rng: Rng) -> Finding:
    """Passes if a ring of nine takes the time of three messages at most, and not of nine."""
    ranks, length = 9, 250
    cluster = Cluster(nodes=ranks, intra_node=MEASURED, inter_node=MEASURED)
    given = per_rank(tensors(rng, ranks, length))
    observed = answer.launch("unit_07.mended", given, ranks=ranks, cluster=cluster)
    allowed = seconds(3, 3 * length * 4)
    return duration_of(criterion, observed, allowed, f"{ranks} ranks, {length * 4} bytes", "3 messages")


def calls_once(criterion: str, observed: Sequence[Observed], name: str) -> Finding:
    """Passes if every rank makes one call, of this name."""
    for run in observed:
        for rank in range(len(run.results)):
            calls = run.calls(rank)
            if calls != [name]:
                text = f"rank {rank} of {len(run.results)} calls {', '.join(calls) or 'nothing'}"
                return Finding(criterion, False, f"{text}; expected one {name} on every rank.")
    return Finding(criterion, True, f"Every rank calls {name} once.")


def grid_groups(criterion: str, observed: Observed, columns: int) -> Finding:
    """Passes if every rank makes two all-reduces, one in its row's group and one in its column's."""
    ranks = len(observed.results)
    for rank in range(ranks):
        row = tuple(r for r in range(ranks) if r // columns == rank // columns)
        column = tuple(r for r in range(ranks) if r % columns == rank % columns)
        seen = sorted((event.op, tuple(sorted(event.group))) for event in observed.communication(rank))
        if seen != sorted([("all_reduce", row), ("all_reduce", column)]):
            text = "; ".join(f"{op} among {list(group)}" for op, group in seen) or "nothing"
            return Finding(
                criterion,
                False,
                f"rank {rank} calls {text}; expected all_reduce among {list(row)} and among {list(column)}.",
            )
    return Finding(criterion, True, "One all_reduce in the row and one in the column, on every rank.")


def grid_sums(
    criterion: str, observed: Observed, given: Sequence[Tensor], position: int, line: Callable[[int], int]
) -> Finding:
    """Passes if each rank's pair has at `position` the sum over the ranks on the same line of the grid."""
    finding = Finding(criterion, False, "")
    for rank, told in enumerate(observed.results):
        pair = told["result"]
        if type(pair) is not list or len(pair) != 2:
            return Finding(
                criterion, False, f"rank {rank} returned {pair!r:.60}; expected a pair of tensors."
            )
        wanted = torch.stack([x for other, x in enumerate(given) if line(other) == line(rank)]).sum(0)
        finding = compare.close(criterion, pair[position], wanted, f"the sum on rank {rank}")
        if not finding.passed:
            return finding
    return finding


def rows_collected(criterion: str, observed: Observed, given: Sequence[list[Tensor]]) -> Finding:
    """Passes if rank 0 has every rank's rows in the order of ranks, and the others have None."""
    expected = [row for rows in given for row in rows]
    first, *others = [told["result"] for told in observed.results]
    if type(first) is not list or len(first) != len(expected):
        got = f"{len(first)} rows" if type(first) is list else f"a {type(first).__name__}"
        return Finding(criterion, False, f"rank 0 returned {got}; expected a list of {len(expected)} rows.")
    for index, (seen, wanted) in enumerate(zip(first, expected, strict=True)):
        finding = compare.close(criterion, seen, wanted, f"row {index} on rank 0")
        if not finding.passed:
            return finding
    if any(result is not None for result in others):
        return Finding(criterion, False, "another rank than 0 returned something; expected None.")
    kept = observed.results[0]["argument"]
    if type(kept) is not list or len(kept) != len(given[0]):
        return Finding(criterion, False, "rank 0's own list of rows has changed; expected a new list.")
    return Finding(
        criterion, True, f"rank 0 has all {len(expected)} rows, of {[len(r) for r in given]} a rank."
    )


def rows_in_order(answer: Answer, given: Sequence[list[Tensor]]) -> Finding:
    """Passes if rank 0 has the rows in the order of ranks, also where rank 1 is the last to send anything."""
    criterion = "all rows on rank 0"
    cluster = Cluster(devices_per_node=len(given), memory_bandwidth=1e9)
    try:
        observed = answer.launch("unit_07.mended_late", per_rank(given), 1, ranks=len(given), cluster=cluster)
    except AnswerFailed as failure:
        text = f"Where rank 1 is late: {failure.kind}: {failure.report.splitlines()[0]}"
        return Finding(criterion, False, text)
    return rows_collected(criterion, observed, given)


SMALL = 64
"""Bytes a rank that may be sent beside the rows: counts, in whatever form."""


def rows_sent_once(criterion: str, observed: Observed, given: Sequence[list[Tensor]]) -> Finding:
    """Passes if each rank sends its rows once, rank 0 none, and hardly anything else."""
    for rank, rows in enumerate(given):
        allowed = (sum(row.nbytes for row in rows) if rank else 0) + SMALL
        sent = observed.traffic[rank].sent
        if sent > allowed:
            text = f"rank {rank} with {len(rows)} rows sends {sent:,} bytes; {allowed:,} are enough"
            return Finding(criterion, False, f"{text}.")
    return Finding(criterion, True, "Each row is sent once, with a few bytes for the counts.")


def error_comes_out(criterion: str, answer: Answer, values: Sequence[float]) -> Finding:
    """Passes if a negative value ends the run with the ValueError that it caused."""
    try:
        answer.launch("unit_07.mended", per_rank(values), ranks=len(values))
    except AnswerFailed as failure:
        if failure.kind == "RankFailed" and failure.report.splitlines()[0].find("ValueError") >= 0:
            return Finding(criterion, True, f"The run ended with: {failure.report.splitlines()[0]}")
        text = failure.report.splitlines()[0] if failure.report else ""
        return Finding(criterion, False, f"With a negative value on one rank: {failure.kind}: {text}")
    return Finding(criterion, False, "With a negative value on one rank no error came out.")


def barriers(criterion: str, observed: Observed) -> Finding:
    """Passes if every rank makes one barrier, as its last call."""
    for rank in range(len(observed.results)):
        calls = observed.calls(rank)
        if calls.count("barrier") != 1 or calls[-1] != "barrier":
            return Finding(criterion, False, f"rank {rank} calls {', '.join(calls) or 'nothing'}.")
    return Finding(criterion, True, "Every rank ends with one barrier.")


def roots_added(values: Sequence[float]) -> list[float]:
    """What each rank of the chain must return: the square roots up to its own, added up."""
    return torch.tensor(values, dtype=torch.float64).sqrt().cumsum(0).tolist()


def numbers(
    criterion: str, observed: Observed, expected: Sequence[float | None], what: str, rtol: float = 1e-5
) -> Finding:
    """Passes if each rank returned its number, or None where None is expected."""
    finding = Finding(criterion, False, "")
    for rank, wanted in enumerate(expected):
        seen = observed.results[rank]["result"]
        name = f"{what} on rank {rank}"
        if wanted is None:
            finding = Finding(criterion, seen is None, f"{name} is {seen!r:.60}; expected None.")
        else:
            finding = compare.near(criterion, seen, wanted, name, rtol=rtol)
        if not finding.passed:
            return finding
    return finding
