"""What a submission may take up where grades are given."""

from dataclasses import dataclass, field

from graders.isolation.usage import Bounds

COMPUTING_SECONDS = 6.0
"""Processor time that a call, or a rank of a launch, may take where grades are given.

A loop without an end costs that much, however busy the machine is. It must do for importing what answers
use and the worker has not imported: torch's compiler, which its optimizers ask for, takes one to two.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that the parts of a submission may take, and what else. A launch brings a limit of its own."""

    cell: float = 20.0
    """One cell: those that train are marked as demonstrations and are not run."""
    call: float = 10.0
    """One call of an answer."""
    grace: float = 5.0
    """So much longer the process of code that does not stop by itself lives before it is killed."""
    bounds: Bounds = field(default_factory=Bounds)
    """What all processes behind one inner sandbox may take together."""
