"""The grader of `tournament`."""

from graders.grading.cases import both, vary
from graders.grading.kit import Answer, Criterion, Finding, PlainData, Rng, compare, per_rank
from graders.units.one_by_one import Looks, look, one_by_one
from graders.units.unit_12.drivers import trainers
from graders.units.unit_12.meetings import Meeting, random_numbers, unchanged

RIGHT = ("the better model", "pairs")


@one_by_one(
    base=Meeting(),
    minutes=30,
    difficulty=3,
    rubric=(
        Criterion(
            "the better model",
            4,
            "Each of the two judges both models by its own score, and keeps the one that it finds better.",
            vary=vary(draw=(1, 2)),
        ),
        Criterion(
            "pairs",
            2,
            "The numbers that randperm gave at places 0 and 1 meet, then those at 2 and 3. An odd one rests.",
            vary=vary(ranks=(7, 6, 3, 1)),
        ),
        Criterion(
            "diverged or equal",
            1,
            "No comparison with NaN is true, and an infinite score is no NaN. Of equals one keeps its own.",
            needs=RIGHT,
            vary=vary(diverged=((0, 1), (1,)), equal=(True,), close=(True,))
            + both(diverged=(0,), infinite=(1,))
            + both(infinite=(1,), sign=1),
        ),
        Criterion(
            "one model each way",
            1,
            "Only partners talk, and each value goes once: model.parameters() has a shared one once.",
            needs=RIGHT,
            how=look("one model each way"),
        ),
        Criterion(
            "random numbers",
            1,
            "A torch.Generator of its own leaves the model's random numbers alone.",
            needs=RIGHT,
            how=look("random numbers"),
        ),
        Criterion(
            "several rounds",
            1,
            "Between rounds models learn: nothing of an old round is true any more.",
            needs=RIGHT,
            vary=both(rounds=3, ranks=5),
        ),
        Criterion(
            "group",
            1,
            "randperm gives places in the group.",
            needs=RIGHT,
            vary=both(grouped=True, ranks=6),
        ),
        Criterion(
            "all of the model",
            1,
            "Buffers too, whatever their type and order in memory; into the tensors that are there, which an "
            "optimizer knows.",
            needs=RIGHT,
            vary=vary(kind=("tied", "all")),
            how=look("all of the model"),
        ),
    ),
    hints=(
        "How do all ranks know the same pairs, without a message?",
        "Both partners want to send first. What may each of them not wait for?",
        "Until it knows which is better a rank needs both models. Where does the one wait while the other is "
        "scored?",
    ),
    possible=lambda case: case.alone,
)
def tournament(answer: Answer, case: Meeting, rng: Rng) -> tuple[Finding, Looks]:
    """Drawn models, and trainers with drawn tastes."""
    rounds = [case.drawn(rng) for _ in range(case.rounds)]
    made: PlainData = (case.kind, 2, case.groups)
    given = [
        [(each.values[rank], each.likes[rank], each.seed) for each in rounds] for rank in range(case.ranks)
    ]
    run = answer.launch(trainers.met, made, per_rank(given), ranks=case.ranks)
    found = compare.first_failure(
        each.survivors(compare.column(run.results, number, case.rounds), f"round {number}: ")
        for number, each in enumerate(rounds)
    )
    looks: Looks = {"all of the model": lambda: unchanged(run)}
    if case.rounds == 1:
        looks["one model each way"] = lambda: rounds[0].traffic(run)
        looks["random numbers"] = lambda: random_numbers(run)
    return found, looks
