"""What became of a batch script that was submitted."""

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class JobReport:
    """What became of a script. refused: what sbatch said, if it took no job."""

    refused: str = ""
    state: str = ""
    fields: dict[str, str] | None = None
    notes: tuple[dict[str, Any], ...] = ()
    output: str = ""

    @property
    def nodes(self) -> int:
        return _whole((self.fields or {}).get("NumNodes", "0"))

    @property
    def gpus(self) -> int:
        found = re.fullmatch(r"gpu(?::\w+)?:(\d+)", (self.fields or {}).get("JOB_GRES", ""))
        return int(found[1]) if found else 0

    @property
    def gpus_altogether(self) -> bool:
        """Whether the job's GPUs were asked for as a sum, which Slurm may deal out unevenly."""
        fields = self.fields or {}
        return "TresPerJob" in fields and not {"TresPerNode", "TresPerTask"} & fields.keys()

    @property
    def minutes(self) -> float:
        """The time limit; infinite if there is none."""
        days, hours, minutes, seconds = _time((self.fields or {}).get("TimeLimit", ""))
        return ((days * 24 + hours) * 60 + minutes) + seconds / 60


def _whole(text: str) -> int:
    """A number as Slurm prints it: "2", and "2-2" before the job has started."""
    found = re.match(r"\d+", text)
    return int(found[0]) if found else 0


def _time(text: str) -> tuple[float, float, float, float]:
    """Slurm's [days-]hours:minutes:seconds."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if found is None:
        return float("inf"), 0, 0, 0
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return days, hours, minutes, seconds
