"""What is found of a layer of experts, of which each rank has some."""

import torch

from graders.grading.kit import Finding, compare
from graders.units.passes import bytes_in_passes, calls_in_passes
from graders.units.unit_10.layer_cases import Case, Replies

PASSES = ("making", "forward", "backward", "average")
ONE_WAY = ["all_to_all_single"]


def outputs(case: Case, run: Replies) -> Finding:
    """Passes if results are right."""
    seen, expected = [reply.result for reply in run.results], [result for result, _ in case.expected]
    return compare.close_on_all_ranks(seen, expected, "the result", 1e-4, 1e-5)


def gradients(case: Case, run: Replies, x: bool) -> Finding:
    """Passes if those of x, or those of the parameters, are right on all ranks. None is zeros."""
    findings = []
    for rank, (reply, (_, expected)) in enumerate(zip(run.results, case.expected, strict=True)):
        for name, wanted in expected.items():
            seen = reply.gradients.get(name)
            if (name == "x") == x and not (seen is None and not wanted.any()):
                findings.append(
                    compare.close(seen, wanted, f"the gradient of {name} on rank {rank}", 1e-4, 1e-5)
                )
    return compare.first_failure(findings)


def all_right(case: Case, run: Replies) -> Finding:
    """Passes if results and all gradients are right."""
    return compare.first_failure((outputs(case, run), *(gradients(case, run, x) for x in (True, False))))


def parameters(case: Case, run: Replies) -> Finding:
    """Passes if every rank has copies of the gate and of its experts, and nothing else."""
    kept = sum(each.nbytes for each in case.values[: 1 + 4 * case.own])
    parts = [f"{name}.{kind}" for name in ("up", "down") for kind in ("weight", "bias")]
    names = sorted(["gate.weight", *(f"experts.{n}.{part}" for n in range(case.own) for part in parts)])
    findings = []
    for rank, reply in enumerate(run.results):
        findings.append(compare.equal(reply.names, names, f"the parameters' names on rank {rank}"))
        findings.append(compare.at_most(reply.kept, kept, f"Bytes in memory by rank {rank}'s layer"))
    return compare.first_failure(findings)


def routing(case: Case, run: Replies) -> Finding:
    """Passes if probabilities and choices are right, and the gate can learn from the probabilities."""
    findings = []
    for rank, (reply, x) in enumerate(zip(run.results, case.x, strict=True)):
        weight = case.values[0].clone().requires_grad_()
        probabilities = (x.reshape(-1, 4) @ weight.T).softmax(1)
        (gradient,) = torch.autograd.grad((probabilities**2).sum() / 2, weight)
        (seen, experts), learnt = reply.routing
        findings += [
            compare.close(seen, probabilities.detach(), f"the probabilities of routing on rank {rank}"),
            compare.close(experts, case.chosen(rank), f"the experts of routing on rank {rank}"),
            compare.close(learnt, gradient, f"the gate's gradient by routing's probabilities on rank {rank}"),
        ]
    return compare.first_failure(findings)


def communication(case: Case, run: Replies) -> Finding:
    """The calls that are needed, of rows as x has them; and each expert is called once with all its rows."""
    ranks, gate = range(len(case.x)), case.values[0]
    chosen = [case.chosen(rank).flatten() for rank in ranks]
    numbers = torch.cat(chosen).bincount(minlength=len(gate))
    limits = []
    for rank in ranks:
        here = int(numbers[rank * case.own : (rank + 1) * case.own].sum())
        both = 16 * (len(chosen[rank]) + here)
        limits.append([0, both + 8 * len(gate), both, gate.nbytes])
    rows = [
        compare.equal(
            [own for reply in run.results for own in reply.rows],
            [[number] for number in numbers.tolist()],
            "how many rows each expert is called with, call by call",
        )
    ]
    expected = [[], ONE_WAY * 3, ONE_WAY * 2, ["all_reduce"]]
    found = calls_in_passes(run, PASSES, expected), bytes_in_passes(run, PASSES, limits)
    return compare.first_failure([*found, *rows])
