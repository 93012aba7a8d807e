"""The grader of `HostOffload`."""

from graders.grading.cases import vary
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.one_by_one import Looks, look, one_by_one
from graders.units.unit_09.offload_passes import SEVERAL, Passes, Setting


@one_by_one(
    base=Setting(),
    name="HostOffload",
    minutes=45,
    difficulty=4,
    rubric=(
        Criterion("gradients", 4, "Backward has to get what forward saved."),
        Criterion(
            "every backward",
            2,
            "A graph may have no backward, or a second one.",
            vary=vary(backwards=(SEVERAL,)),
        ),
        Criterion(
            "what is copied",
            3,
            "Every activation goes to the host, and lies there until backward. The weights are on the device "
            "anyway; autograd saves them too, also as views, which share their storage.",
            how=look("what is copied"),
        ),
        Criterion(
            "the host's memory",
            2,
            "Who still refers to what lies on the host when its graph is gone?",
            needs=("gradients", "what is copied"),
            how=look("the host's memory"),
        ),
        Criterion(
            "on the way ahead",
            4,
            "Backward asks in the reverse order of forward, but for an operation that saved two. When it "
            "asks for one, that and the `ahead` before it are to have begun, each once, and no others.",
            needs=("gradients", "what is copied", "the host's memory"),
            vary=vary(ahead=(0, 3)),
            how=look("on the way ahead"),
        ),
        Criterion(
            "the device's memory",
            3,
            "Who still refers to a tensor that has gone to the host, or that backward has had?",
            needs=("on the way ahead",),
            how=look("the device's memory"),
        ),
    ),
    hints=(
        "What does autograd do with what pack returns, and for how long does it hold it?",
        "pack can return the object that to_host gives. How do you know in unpack which ones were packed "
        "before it, without keeping them alive? Look at the module weakref.",
        "Two tensors that share memory have one storage: compare untyped_storage().data_ptr().",
        "A weakref.WeakKeyDictionary remembers the order in which keys came; its values may be copies that "
        "are under way.",
    ),
    possible=lambda case: case.backwards == (1,) or case.ahead == 1,
)
def host_offload(answer: Answer, case: Setting, rng: Rng) -> tuple[Finding, Looks]:
    """Passes of a model with what it saves on the host."""
    passes = Passes.draw(rng, case)
    run = passes.launch(answer)
    return compare.first_failure(passes.gradients(run)), {
        "what is copied": lambda: passes.copied(run),
        "the host's memory": lambda: passes.on_host(run),
        "on the way ahead": lambda: passes.in_time(run),
        "the device's memory": lambda: passes.on_device(run),
    }
