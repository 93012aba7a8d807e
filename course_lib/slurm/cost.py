"""What a batch script may cost at most, before it is submitted."""

import re
from dataclasses import dataclass

from course_lib.slurm.lint import Script, hours_of
from course_lib.slurm.sites import Partition, Site


@dataclass(frozen=True, slots=True)
class Cost:
    """All tasks of a job's array together, if each uses up its time limit.

    jobs: tasks of the array, 1 without one. nodes, gpus: of one task, on all its nodes. hours: the limit.
    """

    jobs: int
    nodes: int
    gpus: int
    hours: float

    @property
    def node_hours(self) -> float:
        return self.jobs * self.nodes * self.hours

    @property
    def gpu_minutes(self) -> float:
        return self.jobs * self.gpus * self.hours * 60

    def sentence(self, site: Site) -> str:
        """For who is about to submit, with what the site counts in where that is known."""
        factors = [_counted(self.jobs, "job")] if self.jobs > 1 else []
        factors += [_counted(self.nodes, "node"), _counted(self.hours * 60, "minute")]
        sums = [_counted(self.node_hours, "node-hour")]
        sums += [_counted(self.gpu_minutes, "GPU-minute")] if self.gpus else []
        units = self.node_hours * site.units_per_node_hour + self.gpu_minutes / 60 * site.units_per_gpu_hour
        charged = f" {site.title} counts this as {round(units, 2):g} {site.unit}." if units else ""
        return f"At most {' x '.join(factors)} = {', '.join(sums)}.{charged}"


def cost_of(script: Script, site: Site) -> Cost | None:
    """None where the script does not say how many nodes, or how long."""
    nodes, hours = script.option("--nodes") or "", hours_of(script.option("--time") or "")
    if hours is None or not nodes.isdigit():
        return None
    jobs = array_size(script.option("--array") or "0")
    return Cost(jobs, int(nodes), _gpus(script, site, int(nodes)), hours)


def array_size(text: str) -> int:
    """How many tasks an array has: `0-3`, `1,3,5-7`, `0-15:4`, each perhaps with a limit such as `%2`."""
    tasks: set[int] = set()
    for part in text.partition("%")[0].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match is None:
            return 1
        first, last, stride = (int(each) if each else None for each in match.groups())
        assert first is not None
        tasks.update(range(first, (first if last is None else last) + 1, stride or 1))
    return len(tasks)


def _gpus(script: Script, site: Site, nodes: int) -> int:
    """GPUs of the job: those it asks for, or where a partition gives whole nodes, those of its nodes."""
    if (whole := script.option("--gpus")) is not None:
        return _number(whole)
    for name in ("--gpus-per-node", "--gres"):
        if (value := script.option(name)) is not None and (name != "--gres" or value.startswith("gpu")):
            return nodes * _number(value)
    partition = site.partitions.get(script.option("--partition") or site.partition, Partition())
    return nodes * partition.gpus


def _counted(number: float, unit: str) -> str:
    return f"{round(number, 2):g} {unit}{'s' if number != 1 else ''}"


def _number(text: str) -> int:
    """The count at the end: `8`, `h100:2`, `gpu:h100:2`; 1 if there is none."""
    match = re.search(r"(?:^|:)(\d+)$", text)
    return int(match[1]) if match else 1
