"""What places of a group told of a call, and what is found of it."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor

from course_lib.runtime.communication.events import Event
from graders.grading.called import ON_META, Called
from graders.grading.expected import Expected, of_another
from graders.grading.kit import Finding
from graders.units.ranks.features import Ranks

Setting = TypeVar("Setting", bound=Ranks)


def only(allowed: Collection[str] | None, events: Sequence[Event]) -> Finding:
    """Passes if no other calls were made. allowed: None for any."""
    if allowed is None:
        return Finding(True, "Any call is allowed.")
    others = sorted({event.op for event in events} - {*allowed, "new_group"})
    text = f"the values are right, but it calls {', '.join(others)}; allowed are {', '.join(allowed)}."
    return Finding(not others, text)


def on_its_device(setting: Setting, expected: Expected) -> Expected:
    """The same, of tensors without numbers where the setting has these."""
    if setting.layout != "meta":
        return expected
    held = {name: _to_meta(value) for name, value in expected.arguments.items()}
    return replace(expected, result=_to_meta(expected.result), arguments=held)


def _to_meta(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_meta(item) for item in value]
    return value.to(ON_META) if isinstance(value, Tensor) else value


def result_of(
    setting: Setting, expected: Sequence[Expected], called: Called, place: int, what: str
) -> Finding:
    """Passes if this place returned what it must; if it is what another must return, that is said."""
    value = called.value
    of_place = on_its_device(setting, expected[place])
    finding = of_place.result_in(called, what, setting.tolerance)
    if finding.passed or not isinstance(value, Tensor) or not isinstance(of_place.result, Tensor):
        return finding

    def matches(other: int) -> bool:
        return expected[other].result_in(called, what, setting.tolerance).passed

    told = of_another(finding, place, len(expected), matches)
    return told or setting.explained(finding, value, of_place.result)
