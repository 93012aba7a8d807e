"""The grader of `form_to_script`: TACC's portal's form, and the mistakes that one can make in it."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from course_lib.slurm.lint import Script, complaints_about, hours_of
from course_lib.slurm.sites import site_named
from graders.grading.cases import Values, both, vary
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng
from graders.units.one_by_one import one_by_one
from graders.units.unit_03.drivers import texts as drivers
from graders.units.unit_03.replies import FormReply

JUPYTER = "jupyter lab --no-browser"
TACC = replace(site_named("frontera"), partitions={}, submit_from_compute_nodes=True)
"""What all of TACC's systems refuse, without the limits of their queues, and without what they only advise
against, such as #!/bin/sh.
"""
USUAL = {
    "System": "Frontera",
    "Application": "Jupyter notebook",
    "Project": "Frontera-Training",
    "Queue": "rtx-dev",
    "Nodes": "2",
    "Tasks": "8",
    "Job Name": "run42",
    "Time Limit": "04:00:00",
    "Reservation": "ML_Institute_Thu",
}
VISTA = {"nodes": 44, "hours": 148}
QUEUES = {"Frontera": {"rtx-dev": {"nodes": 3, "hours": 5}}, "Vista": {"gh": VISTA, "rtx-dev": VISTA}}


@dataclass(frozen=True, slots=True)
class Form:
    """typed: what differs from the usual form; None: the field is missing. wrong, limits: what to name."""

    typed: Mapping[str, str | None] | tuple[()] = feature(
        (), lambda typed: f"the usual form{f', but {typed}' if typed else ''}"
    )
    wrong: tuple[str, ...] = ()
    limits: tuple[int, ...] = ()

    @property
    def fields(self) -> dict[str, str]:
        return {name: text for name, text in {**USUAL, **dict(self.typed)}.items() if text is not None}


EMPTY: dict[str, str | None] = {**dict.fromkeys(USUAL, ""), "System": "Vista", "Queue": "gh"}
BARE: dict[str, str | None] = {**dict.fromkeys(USUAL), "System": "Vista", "Queue": "gh"}
DEFAULTS = (EMPTY, BARE, {**BARE, "Nodes": "3"}, {**BARE, "Tasks": "42"})
# As texts these tasks come before the nodes.
LARGE = {"System": "Vista", "Nodes": "44", "Tasks": "160", "Job Name": "x" * 20, "Time Limit": "148:0:0"}


def wrong(typed: dict[str, str], *limits: int) -> tuple[Values, ...]:
    """A form with mistakes in these fields."""
    return both(typed=typed, wrong=tuple(typed), limits=limits)


LIMITS = (
    *(each for text in ("0", "two", "-3", "1.5") for each in wrong({"Nodes": text})),
    *(each for text in ("0", "two", "1") for each in wrong({"Tasks": text})),
    *(each for text in ("0:0:0", "01:30", "a:0:0") for each in wrong({"Time Limit": text})),
    *wrong({"Nodes": "4"}, 3),
    *wrong({"Job Name": "x" * 21}, 20),
    *wrong({"Time Limit": "5:0:1"}, 5),
    *wrong({"Queue": "gh"}),
    *wrong({"System": "Stampede"}),
)
SEVERAL = (
    *wrong({"Nodes": "4", "Job Name": "y" * 30, "Time Limit": "6:00:00"}, 3, 20, 5),
    *wrong({"System": "", "Job Name": "y" * 30}),
    *wrong({"Queue": "gh", "Nodes": "two", "Time Limit": "01:30"}),
)


def written(form: Form, reply: FormReply) -> Finding:
    """Passes if sbatch reads the script, it ends with Jupyter's line, and asks for what the form says."""
    if reply.kind:
        return Finding(False, f"it raises {reply.kind}({reply.error!r:.200}); expected a script.")
    if not reply.script:
        return Finding(False, "it returns no text, or an empty one; expected the script's.")
    complaints = complaints_about(Script(reply.script), TACC)
    if complaints:
        return Finding(False, " ".join(complaints[:3]))
    last = reply.script.strip().splitlines()[-1]
    if last.removeprefix("exec ") != JUPYTER:
        return Finding(False, f"the last line is {last!r:.80}; expected {JUPYTER!r}.")
    return asks_for(form, reply)


OPTIONS = {
    "--partition": "Queue",
    "--account": "Project",
    "--reservation": "Reservation",
    "--job-name": "Job Name",
}
"""Options that say what stands in a field, if anything does."""


def asks_for(form: Form, reply: FormReply) -> Finding:
    """Passes if the script asks for what the form says, and for nothing else."""
    fields = form.fields
    seen = {option.name: option.value for option in Script(reply.script).options}
    nodes = fields.get("Nodes") or "1"
    wanted = {name: fields[title] for name, title in OPTIONS.items() if fields.get(title)}
    wanted |= {"--nodes": nodes, "--ntasks": fields.get("Tasks") or nodes}
    hours, limit = hours_of(seen.pop("--time", "")), hours_of(fields.get("Time Limit") or "2:0:0") or 0
    for name in sorted((wanted.keys() | seen.keys()) - {"--output", "--error"}):
        if seen.get(name) != wanted.get(name):
            said = f"the script says {seen.get(name)!r} for {name}"
            return Finding(False, f"{said}; expected {wanted.get(name, 'no such option')!r}.")
    return Finding(
        hours is not None and math.isclose(hours, limit), f"--time is {hours} h; expected {limit} h."
    )


def refused(form: Form, reply: FormReply) -> Finding:
    """Passes if a ValueError names each field that is wrong, and what is allowed."""
    if reply.kind != "ValueError":
        came = f"it raises {reply.kind}: {reply.error}" if reply.kind else "it gives a script"
        return Finding(False, f"{came}; expected a ValueError for {' and '.join(form.wrong)}.")
    said = f"the ValueError says {reply.error!r:.200}"
    wanted = {name: rf"(?<!\w){name}(?!\w)" for name in form.wrong}
    wanted |= {str(limit): rf"(?<!\d){limit}(?!\d)" for limit in form.limits}
    for word, pattern in wanted.items():
        if not re.search(pattern, reply.error):
            return Finding(False, f"{said}; expected {word} in it.")
    return Finding(True, f"{said}.")


@one_by_one(
    base=Form(),
    minutes=20,
    difficulty=2,
    rubric=(
        Criterion(
            "what is asked for",
            3,
            "#!/bin/bash first, then the lines #SBATCH, then the application. Each field has its option, and "
            "--ntasks is the sum over all nodes. What TACC refuses has no place in it.",
            vary=vary(typed=(LARGE,)),
        ),
        Criterion(
            "defaults",
            1,
            "A field may be missing, or be there and empty. Without Nodes it is one node, without Tasks "
            "there are as many tasks as nodes. Without a project, a reservation or a name the script says "
            "nothing of them.",
            vary=vary(typed=DEFAULTS),
        ),
        Criterion(
            "a name of two words",
            1,
            "sbatch takes a value with blanks for one word only if it is quoted, as for a shell.",
            vary=vary(typed=({"Job Name": "my run 42 xxxxxxxxxx"}, {"Job Name": "Ann's run 42"})),
        ),
        Criterion(
            "limits",
            2,
            "Limits depend on the queue, and queues on the system. What is at the limit is allowed; a "
            "second more is not. A Time Limit is hours:minutes:seconds: 01:30 is an error. Nodes "
            "and Tasks are digits only, and at least 1.",
            vary=LIMITS,
        ),
        Criterion(
            "every mistake is named",
            1,
            "Who fills in a form wants to know of all mistakes at once: collect them, then raise.",
            needs=("limits",),
            vary=SEVERAL,
        ),
    ),
    hints=(
        "Which fields can be judged alone, and which only when you know what stands in another one?",
        "What do form.get(name) and `or` give together, if a field is missing, and if it is empty?",
        "How do two times compare that are tuples of hours, minutes and seconds?",
    ),
)
def form_to_script(answer: Answer, form: Form, rng: Rng) -> tuple[Finding, FormReply]:
    """The lecture's form, one at the limits, empty ones, and forms with mistakes."""
    reply = answer.call(drivers.fill_in, form.fields, QUEUES)
    return (refused(form, reply) if form.wrong else written(form, reply)), reply
