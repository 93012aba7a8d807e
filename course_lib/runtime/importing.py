"""Whether code that is to be stopped is importing a module.

Half a package would stay in `sys.modules`, and fail whoever asks for it next. And torch loads some of its
parts when they are first used, `torch._dynamo` and sympy among them. On a busy machine that takes longer than
a check may, so importing does not count.
"""

from types import FrameType

TIMES_MORE = 3
"""So often code that imports when its time is over gets as much time again."""


def importing(frame: FrameType | None) -> bool:
    """Whether a thread that is there in its code is importing a module."""
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None
