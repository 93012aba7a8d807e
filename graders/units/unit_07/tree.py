"""What the two trees of unit 07 share."""

from collections import Counter

from graders.grading.explanation import Tried
from graders.grading.kit import Finding
from graders.grading.traffic import Allowed
from graders.units.unit_07.cases import Setting


def down_a_tree(setting: Setting) -> Allowed:
    """ceil(log2 p) rounds of the whole tensor; each rank but the root has it from another one."""
    steps, nbytes = (setting.ranks - 1).bit_length(), setting.nbytes
    others = setting.ranks - 1
    return Allowed(steps, steps * nbytes, steps, steps * nbytes, others, others * nbytes)


def up_a_tree(setting: Setting) -> Allowed:
    """The same backwards: each rank but the root sends once."""
    steps, nbytes = (setting.ranks - 1).bit_length(), setting.nbytes
    others = setting.ranks - 1
    return Allowed(1, nbytes, steps, steps * nbytes, others, others * nbytes)


def as_few_rounds(tried: Tried[Setting]) -> Finding | None:
    """Passes if the messages, in the order in which they were begun, make no more rounds than a binomial tree
    has, if a rank sends or receives one a round. Time would not tell: on these links a rank that sends to all
    its children at once is as quick, whatever the tree.
    """
    allowed = tried.seen.allowed
    if allowed is None:
        return None
    busy: Counter[int] = Counter()
    for sender, receiver, _ in tried.seen.traffic.messages:
        busy[sender] = busy[receiver] = 1 + max(busy[sender], busy[receiver])
    made = max(busy.values(), default=0)
    text = f"if a rank sends or receives one message a round, these are {made} rounds"
    return Finding(made <= allowed.rounds, f"{text}; a binomial tree has {allowed.rounds}.")
