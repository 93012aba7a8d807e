"""Values on their way to another process of this machine, functions of a notebook among them.

Without PyTorch, so that it can be loaded where that is missing.
"""

import io
import pickle
from types import CodeType
from typing import Any

import cloudpickle

_FILE = 10
"""The file's place among the arguments of `types.CodeType`."""


class ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle; code keeps the name of its file.

    cloudpickle 3.1.3 puts "<dynamic-code>" there, and no report could show the line of a cell any more.
    """

    @classmethod
    def dumps(cls, value: Any) -> bytes:
        """Write a value; `pickle.loads` reads it."""
        buffer = io.BytesIO()
        cls(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
        return buffer.getvalue()

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, CodeType):
            make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](value)
            return make, (*arguments[:_FILE], value.co_filename, *arguments[_FILE + 1 :])
        return super().reducer_override(value)


by_value = ByValuePickler.dumps
