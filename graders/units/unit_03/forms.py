"""Unit 03, the portal's form as a batch script.

Longer than other modules: it holds the forms, with every mistake that one can make in them.
"""

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from course_lib.slurm.lint import Script, complaints_about, hours_of
from course_lib.slurm.sites import site_named
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_03.drivers import texts as drivers
from graders.units.unit_03.replies import FormReply

Form = Mapping[str, str]

LECTURE = {
    "System": "Frontera",
    "Application": "Jupyter notebook",
    "Project": "Frontera-Training",
    "Queue": "rtx",
    "Nodes": "1",
    "Tasks": "1",
    "Job Name": "",
    "Time Limit": "04:00:00",
    "Reservation": "ML_Institute_Thu",
    "VNC Desktop Resolution": "",
}
"""The form as the lecture fills it in."""

JUPYTER = ["jupyter", "lab", "--no-browser"]
LONGEST_NAME = 20
_WHOLE_NODES = replace(site_named("frontera"), partitions={}, submit_from_compute_nodes=True)
"""What all of TACC's systems refuse, without the limits of their queues, which are drawn, and without what
they only advise against, such as #!/bin/sh.
"""


@dataclass(frozen=True)
class Mistakes:
    """A form with mistakes. fields: those that are wrong; allowed: numbers that the message has to name."""

    form: Form
    fields: tuple[str, ...]
    allowed: tuple[int, ...] = ()


@dataclass(frozen=True)
class Portal:
    """What is drawn for one grading: queues with their limits, and forms that keep to them."""

    nodes: int
    hours: int
    small: int
    short: int
    number: int
    systems: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)

    @classmethod
    def drawn(cls, rng: Rng) -> "Portal":
        nodes, hours = rng.integer(6, 16), rng.integer(30, 48)
        small, short = rng.integer(2, 3), rng.integer(4, 6)
        systems = {
            "Frontera": {
                "rtx": {"nodes": nodes, "hours": hours},
                "rtx-dev": {"nodes": small, "hours": short},
                "flash": {"nodes": 1, "hours": 1},
            },
            # A queue's limits are its system's.
            "Vista": {name: {"nodes": 4 * nodes, "hours": 4 * hours} for name in ("gh", "rtx-dev")},
        }
        return cls(nodes, hours, small, short, rng.integer(10, 99), systems)

    @property
    def large(self) -> Form:
        """As much as the queue allows, some hundred hours, with as long a name as the form takes."""
        return LECTURE | {
            "System": "Vista",
            "Queue": "rtx-dev",
            "Nodes": str(4 * self.nodes),
            "Tasks": str(12 * self.nodes + 28),  # As texts these come before the nodes.
            "Job Name": f"run-{self.number}-".ljust(LONGEST_NAME, "x"),
            "Time Limit": f"{4 * self.hours}:0:0",
            "Application": "DCV remote desktop",
            "VNC Desktop Resolution": "the largest",
        }

    @property
    def for_times(self) -> list[Form]:
        """A second less than the queue allows, and the shortest time that there is."""
        return [LECTURE | {"Time Limit": text} for text in (f"{self.hours - 1}:59:59", "0:0:1")]

    @property
    def in_words(self) -> list[Form]:
        """A name as long as it may be, longer in quotes; one with a quote in it; other fields with blanks."""
        names = f"my run {self.number}".ljust(LONGEST_NAME, "x"), f"Ann's run {self.number}"
        others = {"Project": f"my project {self.number}", "Reservation": "ML Institute"}
        return [*(LECTURE | {"Job Name": name} for name in names), LECTURE | others]

    @property
    def with_defaults(self) -> list[Form]:
        """Forms of which fields are empty, or missing."""
        empty = dict.fromkeys(LECTURE, "") | {"System": "Vista", "Queue": "gh"}
        bare = {name: text for name, text in empty.items() if text}
        typed = {"Nodes": str(self.small), "Tasks": str(self.number), "Job Name": f"run{self.number}"}
        typed |= {"Project": f"P-{self.number}", "Reservation": f"R_{self.number}"}
        return [empty, bare, *(bare | {name: text} for name, text in typed.items())]

    @property
    def broken(self) -> list[Mistakes]:
        """One mistake each."""
        dev = LECTURE | {"Queue": "rtx-dev", "Time Limit": "01:30:00"}
        no_times = ["0:0:0", "00:00:00", "-1:0:0", "a:0:0", "01:30", "1:60:0", "1:0:x", "0:1:0:0", "0:0:60"]
        no_times += ["1:-5:0", "1:0:", ":30:0", "1.5:0:0"]

        def wrong(name: str, text: str, *allowed: int) -> Mistakes:
            return Mistakes(dev | {name: text}, (name,), allowed)

        return [
            Mistakes(dev | {"Nodes": str(self.small + 1), "Tasks": "9"}, ("Nodes",), (self.small,)),
            *(wrong(name, text) for name in ("Nodes", "Tasks") for text in ("0", "two", "-3", "1.5", "+1")),
            Mistakes(dev | {"Nodes": "2"}, ("Tasks",)),
            wrong("Job Name", "x" * (LONGEST_NAME + 1), LONGEST_NAME),
            wrong("Time Limit", f"{self.short}:0:1", self.short),
            wrong("Time Limit", f"{self.short}:1:0", self.short),
            Mistakes(dev | {"Queue": "flash", "Time Limit": ""}, ("Time Limit",), (1,)),
            *(wrong("Time Limit", text) for text in no_times),
            *(wrong(*each) for each in (("Queue", "gh"), ("Queue", ""), ("System", "Stampede"))),
            *(Mistakes(_without(dev, name), (name,)) for name in ("Queue", "System")),
        ]

    @property
    def broken_twice(self) -> list[Mistakes]:
        """Several mistakes each."""
        dev = LECTURE | {"Queue": "rtx-dev"}  # Its hours are fewer than a day has.
        long = {"Job Name": "y" * 30, "Time Limit": f"{self.short + 1}:00:00"}
        nowhere = {"System": _without(LECTURE, "System"), "Queue": LECTURE | {"Queue": "gh"}}
        shapeless = {"Nodes": "two", "Time Limit": "01:30"}
        small = {"Nodes": "2", "Tasks": "1", "Job Name": "y" * 21, "Time Limit": "0:0:0"}
        return [
            Mistakes(
                dev | long | {"Nodes": str(self.small + 1), "Tasks": "99"},
                ("Nodes", "Job Name", "Time Limit"),
                (self.small, LONGEST_NAME, self.short),
            ),
            Mistakes(LECTURE | {"System": "", "Job Name": "y" * 30}, ("System", "Job Name")),
            Mistakes(dev | long | {"Nodes": "-1"}, ("Nodes", "Job Name", "Time Limit")),
            Mistakes(LECTURE | {"Nodes": "two", "Tasks": "0"}, ("Nodes", "Tasks")),
            Mistakes(
                LECTURE | {"Nodes": str(self.nodes + 1), "Tasks": "1"}, ("Nodes", "Tasks"), (self.nodes,)
            ),
            *(Mistakes(form | shapeless, (name, *shapeless)) for name, form in nowhere.items()),
            *(Mistakes(form | small, (name, *list(small)[1:])) for name, form in nowhere.items()),
        ]


def _without(form: Form, name: str) -> dict[str, str]:
    return {field: text for field, text in form.items() if field != name}


@exercise(
    minutes=20,
    difficulty=2,
    rubric=(
        Criterion(
            "sbatch reads it",
            1,
            "#!/bin/bash first, then the lines #SBATCH, then the application. What TACC refuses has no "
            "place in it.",
        ),
        Criterion(
            "what is asked for", 2, "Each field has its option, and --ntasks is the sum over all nodes."
        ),
        Criterion(
            "defaults",
            1,
            "A field may be missing, or be there and empty. Without Nodes it is one node, without Tasks "
            "there are as many tasks as nodes. Without a project, a reservation or a name the script says "
            "nothing of them.",
            needs=("what is asked for",),
        ),
        Criterion(
            "a name of two words",
            1,
            "sbatch takes a value with blanks for one word only if it is quoted, as for a shell.",
            needs=("what is asked for",),
        ),
        Criterion(
            "limits",
            2,
            "Limits depend on the queue, and queues on the system. What is at the limit is allowed; a "
            "second more is not. A Time Limit is hours:minutes:seconds: 01:30 and 1:60:0 are errors. Nodes "
            "and Tasks are digits only, and at least 1.",
        ),
        Criterion(
            "every mistake is named",
            1,
            "Who fills in a form wants to know of all mistakes at once: collect them, then raise.",
            needs=("limits",),
        ),
    ),
    hints=(
        "Which fields can be judged alone, and which only when you know what stands in another one?",
        "What do form.get(name) and `or` give together, if a field is missing, and if it is empty?",
        "How do two times compare that are tuples of hours, minutes and seconds?",
    ),
)
def form_to_script(answer: Answer, rng: Rng) -> Findings:
    """The lecture's form, one at the limits, empty ones, and forms with mistakes."""
    portal = Portal.drawn(rng)

    def of(form: Form) -> FormReply:
        return answer.call(drivers.fill_in, dict(form), portal.systems)

    lecture = of(LECTURE)
    yield "sbatch reads it", readable(lecture)
    timed = [(form, of(form)) for form in portal.for_times]
    asked = [
        (portal.large, of(portal.large)),
        (LECTURE, lecture),
        *(each for each in timed if each[1].script),
    ]
    well = compare.first_failure(asks_for(*each, empty=True) for each in asked)
    yield "what is asked for", well
    filled = ((form, of(form)) for form in (LECTURE, *portal.with_defaults))
    yield "defaults", compare.first_failure(asks_for(*each) for each in filled)
    words = ((form, of(form)) for form in portal.in_words)
    yield "a name of two words", compare.first_failure(asks_for(*each, empty=True) for each in words)
    # Refused, they are within the limits; a script of another time is the affair of the row above.
    within = (asks_for(*each) for each in timed if well.passed and not each[1].script)
    beyond = (refused(each, of(each.form)) for each in portal.broken)
    yield "limits", compare.first_failure(chain(within, beyond))
    twice = (refused(each, of(each.form)) for each in portal.broken_twice)
    yield "every mistake is named", compare.first_failure(twice)


def readable(reply: FormReply) -> Finding:
    """Passes if sbatch reads every line as it is meant, TACC takes it, and it ends by starting Jupyter."""
    if not reply.script:
        return Finding(False, f"For the lecture's form it {_instead(reply)}.")
    complaints = complaints_about(Script(reply.script), _WHOLE_NODES)
    if complaints:
        return Finding(False, " ".join(complaints[:3]))
    return starts_jupyter(reply)


def starts_jupyter(reply: FormReply) -> Finding:
    """Passes if the script's last line is Jupyter's, which may take the place of the shell."""
    last = reply.script.strip().splitlines()[-1]
    right = _words(last.removeprefix("exec ")) == JUPYTER
    return Finding(right, f"The last line is {last!r:.80}; expected {shlex.join(JUPYTER)!r}.")


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return [line]


def asks_for(form: Form, reply: FormReply, empty: bool = False) -> Finding:
    """Passes if the script asks for what the form says, and for nothing else, and the form is as it was.

    empty: options of empty fields pass that have no value: they would be another row's.
    """
    shown = dict(form)
    if not reply.script:
        return Finding(False, f"For the form {shown} it {_instead(reply)}.")
    options = Script(reply.script).options
    seen = {
        option.name: option.value
        for option in options
        if option.value or not (empty and option.name in _OPTIONS)
    }
    wanted = {name: form[title] for name, title in _OPTIONS.items() if form.get(title)}
    nodes = form.get("Nodes") or "1"
    wanted |= {"--nodes": nodes, "--ntasks": form.get("Tasks") or nodes}
    hours, limit = hours_of(seen.pop("--time", "")), hours_of(form.get("Time Limit") or "2:0:0")
    unasked = set(seen) - set(wanted) - {"--output", "--error"}
    for name in sorted(set(wanted) | unasked):
        if seen.get(name) != wanted.get(name):
            return Finding(False, f"The form {shown}: {_difference(name, seen, wanted)}.")
    if hours is None or limit is None or not math.isclose(hours, limit):
        return Finding(False, f"The form {shown}: --time is {hours} h; expected {limit} h.")
    if reply.changed:
        return Finding(False, f"The form {shown} was changed; the caller may need it.")
    started = starts_jupyter(reply)
    return started if not started.passed else Finding(True, f"The form {shown} has its script.")


def _instead(reply: FormReply) -> str:
    """What came in place of a script."""
    if reply.kind:
        return f"raises {reply.kind}({reply.error!r:.200}); expected a script"
    return "returns no text, or an empty one; expected the script's"


def _difference(name: str, seen: Mapping[str, str | None], wanted: Mapping[str, str]) -> str:
    """How an option of the script differs from what the form says."""
    if name not in seen:
        return f"the script does not say {name}; expected {name}={wanted[name]}"
    if name not in wanted:
        return f"the script says {name}={seen[name]}, which the form does not ask for"
    return f"{name} is {seen[name]!r}; expected {wanted[name]!r}"


_OPTIONS = {
    "--partition": "Queue",
    "--account": "Project",
    "--reservation": "Reservation",
    "--job-name": "Job Name",
}
"""Options that say what stands in a field, if anything does."""


_JUDGED = ("System", "Queue", "Nodes", "Tasks", "Time Limit", "Job Name")


def refused(case: Mistakes, reply: FormReply) -> Finding:
    """Passes if a ValueError names each field that is wrong, what is allowed, and no field that is right."""
    told = {name: text for name, text in case.form.items() if name in _JUDGED}
    if reply.kind != "ValueError":
        came = f"raises {reply.error}" if reply.kind else "gives a script"
        return Finding(
            False, f"The form {told} {came}; expected a ValueError for {' and '.join(case.fields)}."
        )
    said = f"The form {told}: the ValueError says {reply.error!r:.200}"
    wanted = [rf"(?<!\w){name}(?!\w)" for name in case.fields]
    wanted += [rf"(?<!\d){number}(?!\d)" for number in case.allowed]
    for word, pattern in zip((*case.fields, *case.allowed), wanted, strict=True):
        if not re.search(pattern, reply.error):
            return Finding(False, f"{said}; {word} is not in it.")
    for name in ("Job Name", "Time Limit", "Reservation", "Tasks"):
        if re.search(rf"(?<!\w){name}(?!\w)", reply.error) and name not in case.fields:
            return Finding(False, f"{said}; {name} is right.")
    return Finding(True, f"{said}.")
