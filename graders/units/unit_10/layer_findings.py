"""What is found of a layer of experts, of which each rank has some."""

import torch
from torch import Tensor

from graders.grading.kit import Finding, compare
from graders.units.passes import bytes_in_passes, calls_in_passes
from graders.units.unit_10.layer_cases import Case, Replies
from graders.units.unit_10.pairs import pair

PASSES = ("making", *("forward", "backward") * 2, "average", "forward under no_grad")
ONE_WAY = ["all_to_all_single"]


def outputs(case: Case, run: Replies) -> Finding:
    """Passes if results are right in both steps, and under no_grad."""
    expected = list(map(case.results, range(len(case.batches))))
    return compare.first_failure(
        compare.close_on_all_ranks(
            [reply.results[step] for reply in run.results],
            [each[step] for each in expected],
            f"the result {what}",
            1e-4,
            1e-5,
        )
        for step, what in enumerate(("of step 0", "of step 1", "under no_grad"))
    )


def of_kind(case: Case, run: Replies, x: bool) -> Finding:
    """Passes if the gradients of x, or those of the parameters, are right on all ranks."""
    groups = case.groups or [list(range(len(case.batches)))]
    ranks = [rank for group in groups for rank in group]
    return compare.first_failure(
        gradient(run.results[rank].gradients.get(name), wanted, f"the gradient of {name} on rank {rank}")
        for rank, expected in zip(ranks, case.gradients, strict=True)
        for name, wanted in expected.items()
        if name.startswith("x of") == x
    )


def gradient(seen: Tensor | None, wanted: Tensor | None, what: str) -> Finding:
    """Zeros and no gradient are the same here."""
    if wanted is None or (seen is None and not wanted.any()):
        return Finding(seen is None or not seen.any(), f"{what} is {compare.shown(seen)}; expected none.")
    return compare.close(seen, wanted, what, 1e-4, 1e-5)


def gradients_of_x(case: Case, run: Replies) -> Finding:
    """Passes if those of both steps are right."""
    return of_kind(case, run, x=True)


def averaged(case: Case, run: Replies) -> Finding:
    """Passes if the parameters' gradients are right, in the tensors in which they were."""
    replaced = (
        compare.equal(reply.replaced, [], f"whose .grad on rank {rank} is another tensor than before")
        for rank, reply in enumerate(run.results)
    )
    return compare.first_failure((of_kind(case, run, x=False), *replaced))


def all_right(case: Case, run: Replies) -> Finding:
    """Passes if results and all gradients are right, and x is as it was."""
    left = (
        compare.equal(reply.x, batches[-1], "x afterwards")
        for reply, batches in zip(run.results, case.batches, strict=True)
    )
    return compare.first_failure((outputs(case, run), *(of_kind(case, run, x) for x in (True, False)), *left))


def parameters(case: Case, run: Replies) -> Finding:
    """Passes if every rank has copies of the gate and of its experts, and nothing else."""
    count = len(case.values[1:]) // len(case.values[0])
    kept = case.values[0].nbytes + sum(each.nbytes for each in case.values[1 : 1 + count * case.own])
    parts = [f"{name}.{kind}" for name in ("up", "down") for kind in ("weight", "bias")]
    names = sorted(["gate.weight", *(f"experts.{n}.{part}" for n in range(case.own) for part in parts)])
    findings = (
        (
            compare.equal(reply.names, names, f"the parameters' names on rank {rank}"),
            compare.at_most(reply.kept, kept, f"Bytes in memory by rank {rank}'s layer"),
            compare.equal(reply.changed, [], "what is no longer as it was with the layer given"),
        )
        for rank, reply in enumerate(run.results)
    )
    return compare.first_failure(each for of_rank in findings for each in of_rank)


def routing(case: Case, run: Replies) -> Finding:
    """Passes if probabilities and choices are right, and the gate can learn from the probabilities."""
    findings = []
    for rank, (reply, batches) in enumerate(zip(run.results, case.batches, strict=True)):
        steps = zip(reply.routing, (*batches, batches[0]), (True, True, False), strict=True)
        for (seen, learnt), batch, learns in steps:
            gate = case.whole().gate
            probabilities = gate(batch.reshape(-1, batch.shape[-1])).softmax(1)
            (gradient,) = torch.autograd.grad((probabilities**2).sum() / 2, gate.weight)
            found, wanted = pair(seen), (probabilities.detach(), case.chosen(probabilities.detach()))
            for part, what in enumerate(("probabilities", "experts")):
                name = f"the {what} of routing{'' if learns else ' under no_grad'} on rank {rank}"
                findings.append(compare.close(found[part], wanted[part], name))
            if learns:
                name = f"the gradient of the gate by routing's probabilities on rank {rank}"
                findings.append(compare.close(learnt, gradient, name))
    return compare.first_failure(findings)


def communication(case: Case, run: Replies) -> list[Finding]:
    """The calls that are needed, of rows as x has them; and the all-reduce is of the gate's gradient."""
    ranks = range(len(case.batches))
    count, row = len(case.values[0]), case.batches[0][0].shape[-1] * case.values[0].element_size()
    sent = []  # of each step and rank, bytes of the rows that it gives to the calls of both passes
    for step in (0, 1):
        chosen = [
            case.chosen(each[step].reshape(-1, 4) @ case.values[0].T).flatten() for each in case.batches
        ]
        there = [len(each) for each in chosen]
        here = [sum(int((each // case.own == rank).sum()) for each in chosen) for rank in ranks]
        both = zip(there, here, strict=True)
        sent.append([(row * (a + b) + 8 * count, row * (a + b * case.learns)) for a, b in both])
    limits = [[0, *(n for of_step in sent for n in of_step[rank]), case.values[0].nbytes] for rank in ranks]
    backward, averaged = ONE_WAY * (1 + case.learns), ["all_reduce"] * (0 not in case.frozen)
    expected = [[], *([ONE_WAY * 3, backward] * 2), averaged, ONE_WAY * 3]
    return [calls_in_passes(run, PASSES, expected), bytes_in_passes(run, PASSES, limits)]


def rows(case: Case, run: Replies) -> Finding:
    """Passes if each expert was called once in each forward, with all rows that are for it."""
    findings = []
    for rank, reply in enumerate(run.results):
        members = case.members(rank)
        for place, seen in enumerate(reply.rows):
            number = members.index(rank) * case.own + place
            wanted = []
            for step in (0, 1, 0):
                chosen = [
                    case.chosen(case.batches[o][step].reshape(-1, 4) @ case.values[0].T) for o in members
                ]
                wanted.append(sum(int((each == number).sum()) for each in chosen))
            findings.append(compare.equal(seen, wanted, f"rows of each call of expert {number}"))
    return compare.first_failure(findings)
