"""The grader of `form_to_script`."""

import math
import re
import shlex
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from course_lib.slurm.lint import Script, complaints_about, hours_of
from course_lib.slurm.sites import site_named
from graders.grading.cases import both, vary
from graders.grading.judging import ByCases, Stage, by_cases
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.unit_03.drivers import texts as drivers
from graders.units.unit_03.forms import (
    DEFAULTS,
    LARGE,
    LIMITS,
    QUEUES,
    SEVERAL,
    WORDS,
    Form,
    fields_of,
    filled,
)
from graders.units.unit_03.replies import FormReply

JUPYTER = ["jupyter", "lab", "--no-browser"]
TACC = replace(site_named("frontera"), partitions={}, submit_from_compute_nodes=True)
"""What all of TACC's systems refuse, without the limits of their queues, and without what they only advise
against, such as #!/bin/sh.
"""


class OfForms(Stage[Form]):
    """What becomes of each form."""

    def together(self, features: Form) -> Hashable:
        return features

    def run(self, answer: Answer, cases: Sequence[tuple[Form, Rng]]) -> Sequence[tuple[Finding, Any]]:
        found = []
        for form, _ in cases:
            fields = fields_of(form.typed)
            reply = answer.call(drivers.fill_in, fields, QUEUES)
            found.append((refused(form, reply) if form.wrong else written(form, fields, reply), reply))
        return found


def written(form: Form, fields: Mapping[str, str], reply: FormReply) -> Finding:
    """Passes if a script that sbatch reads asks for what the form says."""
    if reply.kind:
        return Finding(False, f"it raises {reply.kind}({reply.error!r:.200}); expected a script.")
    if not reply.script:
        return Finding(False, "it returns no text, or an empty one; expected the script's.")
    return compare.first_failure(
        look(form, fields, reply) for look in (readable, asks_for, starts_jupyter, form_kept)
    )


def readable(form: Form, fields: Mapping[str, str], reply: FormReply) -> Finding:
    """Passes if sbatch reads every line as it is meant, and TACC takes it."""
    # What stands in a field is the user's affair.
    complaints = [] if form.typed else complaints_about(Script(reply.script), TACC)
    return Finding(not complaints, " ".join(complaints[:3]) or "sbatch reads it.")


def starts_jupyter(form: Form, fields: Mapping[str, str], reply: FormReply) -> Finding:
    """Passes if the script's last line is Jupyter's, which may take the place of the shell."""
    last = reply.script.strip().splitlines()[-1]
    try:
        right = shlex.split(last.removeprefix("exec ")) == JUPYTER
    except ValueError:
        right = False
    return Finding(right, f"the last line is {last!r:.80}; expected {shlex.join(JUPYTER)!r}.")


def form_kept(form: Form, fields: Mapping[str, str], reply: FormReply) -> Finding:
    """Passes if the form is as it was."""
    return Finding(not reply.changed, "the form was changed; the caller may need it.")


OPTIONS = {
    "--partition": "Queue",
    "--account": "Project",
    "--reservation": "Reservation",
    "--job-name": "Job Name",
}
"""Options that say what stands in a field, if anything does."""


def asks_for(form: Form, fields: Mapping[str, str], reply: FormReply) -> Finding:
    """Passes if the script asks for what the form says, and for nothing else."""
    seen = {
        option.name: option.value
        for option in Script(reply.script).options
        if option.value or form.strict or option.name not in OPTIONS
    }
    nodes = fields.get("Nodes") or "1"
    wanted = {name: fields[title] for name, title in OPTIONS.items() if fields.get(title)}
    wanted |= {"--nodes": nodes, "--ntasks": fields.get("Tasks") or nodes}
    hours, limit = hours_of(seen.pop("--time", "")), hours_of(fields.get("Time Limit") or "2:0:0")
    for name in sorted((wanted.keys() | seen.keys()) - {"--output", "--error"}):
        if name not in seen:
            return Finding(False, f"the script does not say {name}; expected {name}={wanted[name]}.")
        if name not in wanted:
            return Finding(False, f"the script says {name}={seen[name]}, which the form does not ask for.")
        if seen[name] != wanted[name]:
            return Finding(False, f"{name} is {seen[name]!r}; expected {wanted[name]!r}.")
    right = hours is not None and limit is not None and math.isclose(hours, limit)
    return Finding(right, f"--time is {hours} h; expected {limit} h.")


def refused(form: Form, reply: FormReply) -> Finding:
    """Passes if a ValueError names each field that is wrong, what is allowed, and no field that is right."""
    if reply.kind != "ValueError":
        came = f"it raises {reply.kind}: {reply.error}" if reply.kind else "it gives a script"
        return Finding(False, f"{came}; expected a ValueError for {' and '.join(form.wrong)}.")
    said = f"the ValueError says {reply.error!r:.200}"
    wanted = {name: rf"(?<!\w){name}(?!\w)" for name in form.wrong}
    wanted |= {str(limit): rf"(?<!\d){limit}(?!\d)" for limit in form.limits}
    for word, pattern in wanted.items():
        if not re.search(pattern, reply.error):
            return Finding(False, f"{said}; {word} is not in it.")
    for name in ("Job Name", "Time Limit", "Reservation", "Tasks"):
        if re.search(rf"(?<!\w){name}(?!\w)", reply.error) and name not in form.wrong:
            return Finding(False, f"{said}; {name} is right.")
    return Finding(True, f"{said}.")


RUBRIC = (
    Criterion(
        "what is asked for",
        3,
        "#!/bin/bash first, then the lines #SBATCH, then the application. Each field has its option, and "
        "--ntasks is the sum over all nodes. What TACC refuses has no place in it.",
        vary=vary(typed=(LARGE, filled(Time_Limit="36:59:59"), filled(Time_Limit="0:0:1"))),
    ),
    Criterion(
        "defaults",
        1,
        "A field may be missing, or be there and empty. Without Nodes it is one node, without Tasks "
        "there are as many tasks as nodes. Without a project, a reservation or a name the script says "
        "nothing of them.",
        vary=vary(strict=(True,))
        + tuple(change for typed in DEFAULTS for change in both(typed=typed, strict=True)),
    ),
    Criterion(
        "a name of two words",
        1,
        "sbatch takes a value with blanks for one word only if it is quoted, as for a shell.",
        vary=vary(typed=WORDS),
    ),
    Criterion(
        "limits",
        2,
        "Limits depend on the queue, and queues on the system. What is at the limit is allowed; a "
        "second more is not. A Time Limit is hours:minutes:seconds: 01:30 and 1:60:0 are errors. Nodes "
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
)


def possible(form: Form) -> bool:
    """An empty field may be told of where there is a mistake in another."""
    return not (form.strict and form.wrong)


@by_cases(
    ByCases(Form(), OfForms(), RUBRIC, possible),
    minutes=20,
    difficulty=2,
    hints=(
        "Which fields can be judged alone, and which only when you know what stands in another one?",
        "What do form.get(name) and `or` give together, if a field is missing, and if it is empty?",
        "How do two times compare that are tuples of hours, minutes and seconds?",
    ),
)
def form_to_script() -> None:
    """The lecture's form, one at the limits, empty ones, and forms with mistakes."""
