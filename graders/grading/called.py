"""What a call of the answer left behind, as a driver tells it."""

from dataclasses import dataclass, field

from graders.grading.answer import DriverReply, PlainData

ON_META = "meta"
"""What a driver hands over for a tensor on that device, which has no numbers."""


@dataclass(frozen=True, slots=True)
class Called(DriverReply):
    """What one call of the answer returned and left behind.

    result: what it returned, if that is none of its arguments; returned: which argument it is, else None.
    arguments: what they hold afterwards. items_kept: whether the lists among them have the tensors that they
    had. memory_kept: whether the tensors lie where they lay. gaps_kept: whether the memory between the
    elements of tensors was left alone. shares: whether a result that is no argument lies in the memory of
    one, or of an earlier result. By default all is as it should be, for drivers that look themselves.
    """

    result: PlainData
    returned: int | None
    arguments: list[PlainData]
    items_kept: bool = field(default=True, kw_only=True)
    memory_kept: bool = field(default=True, kw_only=True)
    gaps_kept: bool = field(default=True, kw_only=True)
    shares: bool = field(default=False, kw_only=True)

    @property
    def value(self) -> PlainData:
        """What it returned, whether or not it is an argument."""
        if self.returned is None:
            return self.result
        return next(iter(self.arguments[self.returned : self.returned + 1]), None)
