"""Forms of TACC's portal, and the mistakes that one can make in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graders.grading.cases import Values, both
from graders.grading.judging import feature

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
QUEUES = {
    "Frontera": {
        "rtx": {"nodes": 11, "hours": 37},
        "rtx-dev": {"nodes": 3, "hours": 5},
        "flash": {"nodes": 1, "hours": 1},
    },
    # A queue's limits are its system's.
    "Vista": {"gh": {"nodes": 44, "hours": 148}, "rtx-dev": {"nodes": 44, "hours": 148}},
}


@dataclass(frozen=True, slots=True)
class Form:
    """typed: what differs from the lecture's form; None: the field is missing. wrong: the fields that are to
    be named. limits: the numbers that are. strict: whether an option of an empty field may not even be there
    without a value.
    """

    typed: tuple[tuple[str, str | None], ...] = feature(
        (), lambda typed: f"the lecture's form{f' with {dict(typed)}' if typed else ''}"
    )
    wrong: tuple[str, ...] = ()
    limits: tuple[int, ...] = ()
    strict: bool = False


def fields_of(typed: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """The whole form."""
    form: dict[str, str | None] = {**LECTURE, **dict(typed)}
    return {name: text for name, text in form.items() if text is not None}


def filled(
    *, of: Mapping[str, str | None] = LECTURE, **typed: str | None
) -> tuple[tuple[str, str | None], ...]:
    """What is typed in; of a field's name a _ is a blank."""
    changed = {name: text for name, text in of.items() if LECTURE.get(name) != text}
    return tuple((changed | {name.replace("_", " "): text for name, text in typed.items()}).items())


DEV = {"Queue": "rtx-dev", "Time Limit": "01:30:00"}
BARE: dict[str, str | None] = {**dict.fromkeys(LECTURE), "System": "Vista", "Queue": "gh"}
EMPTY: dict[str, str | None] = {**dict.fromkeys(LECTURE, ""), "System": "Vista", "Queue": "gh"}


def wrong(
    *fields: str, limits: tuple[int, ...] = (), of: Mapping[str, str | None] = DEV, **typed: str | None
) -> tuple[Values, ...]:
    """A form with mistakes in these fields."""
    return both(typed=filled(of=of, **typed), wrong=fields, limits=limits)


LARGE = filled(
    System="Vista",
    Queue="rtx-dev",
    Nodes="44",
    Tasks="160",  # As texts these come before the nodes.
    Job_Name="run-42-xxxxxxxxxxxxx",
    Time_Limit="148:0:0",
    Application="DCV remote desktop",
    VNC_Desktop_Resolution="the largest",
)
DEFAULTS = (
    filled(of=EMPTY),
    filled(of=BARE),
    filled(of=BARE, Nodes="3"),
    filled(of=BARE, Tasks="42"),
    filled(of=BARE, Job_Name="run42", Project="P-42", Reservation="R_42"),
)
WORDS = (
    filled(Job_Name="my run 42 xxxxxxxxxx"),
    filled(Job_Name="Ann's run 42"),
    filled(Project="my project 42", Reservation="ML Institute"),
)
NO_NUMBERS = ("0", "two", "-3", "1.5", "+1")
NO_TIMES = (
    "0:0:0",
    "00:00:00",
    "1:-5:0",
    "-1:0:0",
    "a:0:0",
    "01:30",
    "1:60:0",
    "1:0:x",
    "0:1:0:0",
    "0:0:60",
    "1:0:",
    "1.5:0:0",
)
LIMITS = (
    *(each for text in NO_NUMBERS for each in wrong("Nodes", Nodes=text)),
    *(each for text in NO_NUMBERS for each in wrong("Tasks", Tasks=text)),
    *(each for text in NO_TIMES for each in wrong("Time Limit", Time_Limit=text)),
    *wrong("Nodes", limits=(3,), Nodes="4", Tasks="9"),
    *wrong("Tasks", Nodes="2"),
    *wrong("Job Name", limits=(20,), Job_Name="x" * 21),
    *wrong("Time Limit", limits=(5,), Time_Limit="5:0:1"),
    *wrong("Time Limit", limits=(5,), Time_Limit="5:1:0"),
    *wrong("Time Limit", limits=(1,), Queue="flash", Time_Limit=""),
    *(each for queue in ("gh", "", None) for each in wrong("Queue", Queue=queue)),
    *(each for system in ("Stampede", None) for each in wrong("System", System=system)),
)
SEVERAL = (
    *wrong(
        "Nodes",
        "Job Name",
        "Time Limit",
        limits=(3, 20, 5),
        Nodes="4",
        Tasks="99",
        Job_Name="y" * 30,
        Time_Limit="6:00:00",
    ),
    *wrong("System", "Job Name", of={}, System="", Job_Name="y" * 30),
    *wrong("Nodes", "Tasks", of={}, Nodes="two", Tasks="0"),
    *wrong("Nodes", "Tasks", of={}, limits=(11,), Nodes="12", Tasks="1"),
    *wrong("Queue", "Nodes", "Time Limit", of={}, Queue="gh", Nodes="two", Time_Limit="01:30"),
    *wrong(
        "System",
        "Tasks",
        "Job Name",
        "Time Limit",
        of={},
        System=None,
        Nodes="2",
        Tasks="1",
        Job_Name="y" * 21,
        Time_Limit="0:0:0",
    ),
)
