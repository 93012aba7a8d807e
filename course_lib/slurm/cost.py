"""What a batch script may cost at most, before it is submitted."""

import re
from dataclasses import dataclass, field, replace

from course_lib.slurm.lint import Script, hours_of
from course_lib.slurm.sites import Partition, Site


@dataclass(frozen=True, slots=True)
class Cost:
    """All tasks of a job's array together, if each uses up its time limit.

    jobs: tasks of the array, 1 without one. nodes, gpus, cores: of one task, on all its nodes. hours: the
    limit. partition: where it runs.
    """

    jobs: int
    nodes: int
    gpus: int
    hours: float
    cores: int = 0
    partition: Partition = field(default_factory=Partition)

    @property
    def node_hours(self) -> float:
        return self.jobs * self.nodes * self.hours

    @property
    def gpu_minutes(self) -> float:
        return self.jobs * self.gpus * self.hours * 60

    def units(self, site: Site) -> float:
        """What the site charges, in its own unit; 0 where its rates are not known."""
        where = self.partition
        an_hour = self.nodes * where.node_rate + self.gpus * where.gpu_rate + self.cores * where.core_rate
        return self.jobs * max(self.hours, site.least_hours) * an_hour

    def charge(self, site: Site, times: int = 1) -> str:
        """So often the same as words, such as "12 SUs"; empty where the rates are not known."""
        units = times * self.units(site)
        return f"{round(units, 2):g} {self.partition.unit or site.unit}" if units else ""

    def sentence(self, site: Site) -> str:
        """For who is about to submit, with what the site counts in where that is known."""
        factors = [_counted(self.jobs, "job")] if self.jobs > 1 else []
        factors += [_counted(self.nodes, "node"), _counted(self.hours * 60, "minute")]
        sums = [_counted(self.node_hours, "node-hour")]
        sums += [_counted(self.gpu_minutes, "GPU-minute")] if self.gpus else []
        charge = self.charge(site)
        charged = f" {site.title} charges {charge} for this." if charge else ""
        return f"At most {' x '.join(factors)} = {', '.join(sums)}.{charged}"


def cost_of(script: Script, site: Site) -> Cost | None:
    """None where the script does not say how many nodes, or how long."""
    nodes, hours = script.option("--nodes") or "", hours_of(script.option("--time") or "")
    if hours is None or not nodes.isdigit():
        return None
    partition = site.partitions.get(script.option("--partition") or site.partition, Partition())
    return Cost(
        jobs=array_size(script.option("--array") or "0"),
        nodes=int(nodes),
        gpus=_gpus(script, site, int(nodes), partition),
        hours=hours,
        cores=_cores(script, int(nodes)),
        partition=partition,
    )


def without_gpus(cost: Cost, site: Site) -> tuple[str, Cost] | None:
    """The site's first partition without GPUs that takes the same job, and its cost there.

    None if the job is in such a one already, or if there is none.
    """
    if cost.partition.gpus == 0:
        return None
    for name, there in site.partitions.items():
        enough = there.least_nodes <= cost.nodes <= (there.nodes or cost.nodes)
        if there.gpus == 0 and enough and cost.hours <= (there.hours or cost.hours):
            return name, replace(cost, gpus=0, partition=there)
    return None


def advice(cost: Cost, site: Site) -> str:
    """What to say of a job that needs no GPU; empty if it asks for none."""
    if (found := without_gpus(cost, site)) is None:
        return ""
    name, there = found
    here, instead = cost.charge(site), there.charge(site)
    price = f", for {instead} instead of {here}" if here and instead else ""
    return (
        f"Units whose ranks are simulated or processes of one machine need no GPU: --partition {name} would "
        f"do{price}."
    )


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


def _gpus(script: Script, site: Site, nodes: int, partition: Partition) -> int:
    """GPUs of the job: those it asks for, or where a partition gives whole nodes, those of its nodes."""
    if (whole := script.option("--gpus")) is not None:
        return _number(whole)
    for name in ("--gpus-per-node", "--gres"):
        if (value := script.option(name)) is not None and (name != "--gres" or value.startswith("gpu")):
            return nodes * _number(value)
    return 0 if site.gpu_option else nodes * (partition.gpus or 0)


def _cores(script: Script, nodes: int) -> int:
    """Cores of the job that it asks for."""
    tasks = script.option("--ntasks") or str(nodes * _number(script.option("--ntasks-per-node") or "1"))
    return _number(tasks) * _number(script.option("--cpus-per-task") or "1")


def _counted(number: float, unit: str) -> str:
    return f"{round(number, 2):g} {unit}{'s' if number != 1 else ''}"


def _number(text: str) -> int:
    """The count at the end: `8`, `h100:2`, `gpu:h100:2`; 1 if there is none."""
    match = re.search(r"(?:^|:)(\d+)$", text)
    return int(match[1]) if match else 1
