"""Operators placed on devices, as a graph of tasks: a step whose parts of the batch may be anywhere.

Each operator's batch is cut into parts, and a plan says for each operator which device computes which part.
All parts on devices of their own is data parallelism; operators on different devices, model parallelism.
Whatever the plan is, the tasks have the same numbers and edges: a message that need not be sent takes no
time. (Jia, Zaharia, Aiken 2019, in one of their four dimensions.)
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from course_lib.planner.profiles import Profile
from course_lib.planner.timelines import Task

Places = tuple[tuple[int, ...], ...]
"""For each operator and each part of the batch the device that computes it."""


@dataclass(frozen=True, slots=True)
class Placeable:
    """An operator. operations: of its forward and backward for the whole batch. output_bytes: of the whole
    batch. weight_bytes: of its parameters. inputs: the operators, all before it, whose output it takes.
    """

    name: str
    operations: float
    output_bytes: float
    weight_bytes: float
    inputs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices, `per_node` on a node. speed: operations a second. within, between: bytes a second of a link
    between two devices of one node, and of two nodes.
    """

    devices: int
    per_node: int
    speed: float
    within: float
    between: float

    def bandwidth(self, devices: Iterable[int]) -> float:
        """Bytes a second among these devices."""
        return self.within if len({device // self.per_node for device in devices}) < 2 else self.between


@dataclass(frozen=True)
class PlacedStep:
    """One step, whose batch has so many parts.

    Its devices are the machine's, then the link from each to each, then one for all-reduces.
    """

    operators: tuple[Placeable, ...]
    machine: Machine
    parts: int

    @property
    def devices(self) -> int:
        return self.machine.devices * (self.machine.devices + 1) + 1

    @cached_property
    def links(self) -> list[tuple[int, int]]:
        """(from, to) for all operators one of which takes the other's output."""
        return [(source, target) for target, op in enumerate(self.operators) for source in op.inputs]

    @cached_property
    def numbers(self) -> dict[tuple[str, int, int], int]:
        """What each task does: its kind, its operator or link, its part; and its number. In an order in which
        nothing comes before what it waits for.
        """
        parts, found = range(self.parts), []
        into: list[list[int]] = [[] for _ in self.operators]
        out: list[list[int]] = [[] for _ in self.operators]
        for link, (source, target) in enumerate(self.links):
            out[source].append(link)
            into[target].append(link)
        for number, links in enumerate(into):
            found += [("send", link, part) for link in links for part in parts]
            found += [("forward", number, part) for part in parts]
        for number, links in reversed(list(enumerate(out))):
            found += [("return", link, part) for link in links for part in parts]
            found += [("backward", number, part) for part in parts]
        found += [("all-reduce", number, 0) for number in range(len(self.operators))]
        return {what: place for place, what in enumerate(found)}

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        """(before, after), the lower number first."""
        numbers, pairs = self.numbers, []
        for part in range(self.parts):
            for number in range(len(self.operators)):
                pairs.append((("forward", number, part), ("backward", number, part)))
                pairs.append((("backward", number, part), ("all-reduce", number, 0)))
            for link, (source, target) in enumerate(self.links):
                pairs.append((("forward", source, part), ("send", link, part)))
                pairs.append((("send", link, part), ("forward", target, part)))
                pairs.append((("backward", target, part), ("return", link, part)))
                pairs.append((("return", link, part), ("backward", source, part)))
        return [(numbers[first], numbers[second]) for first, second in pairs]

    def tasks(self, plan: Places) -> list[Task]:
        """All tasks of a plan, by number."""
        every = self._tasks_of(plan, range(len(self.operators)), range(len(self.links)))
        return [task for _, task in sorted(every.items())]

    def changes(self, old: Places, new: Places) -> dict[int, Task]:
        """Number -> task, for those that may be others in the new plan."""
        moved = {number for number, devices in enumerate(new) if devices != old[number]}
        links = [link for link, ends in enumerate(self.links) if moved.intersection(ends)]
        return self._tasks_of(new, moved, links)

    def data_parallel(self) -> Places:
        """Each operator on all devices, as far as there are parts."""
        devices = tuple(part % self.machine.devices for part in range(self.parts))
        return (devices,) * len(self.operators)

    def _tasks_of(self, plan: Places, operators: Iterable[int], links: Iterable[int]) -> dict[int, Task]:
        machine, numbers, found = self.machine, self.numbers, {}
        for number in operators:
            op, devices = self.operators[number], plan[number]
            seconds = op.operations / machine.speed / self.parts
            for part, device in enumerate(devices):
                # Backward takes twice as long as forward.
                found[numbers["forward", number, part]] = Task(device, seconds / 3)
                found[numbers["backward", number, part]] = Task(device, 2 * seconds / 3)
            count = len(set(devices))
            exchanged = 2 * (count - 1) / count * op.weight_bytes / machine.bandwidth(devices)
            found[numbers["all-reduce", number, 0]] = Task(self.devices - 1, exchanged)
        for link in links:
            source, target = self.links[link]
            nbytes = self.operators[source].output_bytes / self.parts
            for part, (sender, receiver) in enumerate(zip(plan[source], plan[target], strict=True)):
                seconds = nbytes / machine.bandwidth((sender, receiver)) if sender != receiver else 0.0
                there, back = (self._link(*ends) for ends in ((sender, receiver), (receiver, sender)))
                found[numbers["send", link, part]] = Task(there, seconds)
                found[numbers["return", link, part]] = Task(back, seconds)
        return found

    def _link(self, sender: int, receiver: int) -> int:
        """The device that is the link between two."""
        return self.machine.devices * (sender + 1) + receiver


def chain_of(profile: Profile) -> tuple[Placeable, ...]:
    """Operators of a chain of layers: each that has weights, with those behind it that have none."""
    found: list[Placeable] = []
    layers = zip(profile.operations, profile.activation_bytes, profile.weight_bytes, strict=True)
    for operations, output_bytes, weight_bytes in layers:
        number = len(found)
        if weight_bytes or not found:
            inputs = (number - 1,) if number else ()
            found.append(Placeable(f"layer {number}", operations, output_bytes, weight_bytes, inputs))
        else:
            last = found[-1]
            found[-1] = Placeable(
                last.name, last.operations + operations, output_bytes, last.weight_bytes, last.inputs
            )
    return tuple(found)


def branches(count: int, depth: int = 4) -> tuple[Placeable, ...]:
    """Branches of so many operators that meet in one last operator; the first is by far the longest."""
    found: list[Placeable] = []
    for branch in range(count):
        operations = 4e10 if branch == 0 else 1e9 * (1 + 7 * branch % 10)
        for place in range(depth):
            inputs = (len(found) - 1,) if place else ()
            found.append(Placeable(f"branch {branch}.{place}", operations, 4e6, 8e6, inputs))
    ends = tuple(range(depth - 1, count * depth, depth))
    return (*found, Placeable("together", 1e10, 1e6, 4e6, ends))
