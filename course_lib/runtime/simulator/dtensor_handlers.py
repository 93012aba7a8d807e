"""How DTensor treats certain operators, for each simulated rank apart.

torch keeps that in a table of the process, which `loss_parallel` changes where it begins and where it ends.
Ranks come there at different times.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_Table = dict[Any, Any]

_API = "torch.distributed.tensor._api"


class DTensorHandlers:
    """The tables of a launch's ranks, once DTensor is imported."""

    def __init__(self) -> None:
        self._tables: dict[int, _Table] = {}
        self._kernels: _Table | None = None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Remember the kernel's table; afterwards it is in place again."""
        before = _dispatcher()
        self._kernels = None if before is None else before._custom_op_handlers
        try:
            yield
        finally:
            if (dispatcher := _dispatcher()) is not None:
                dispatcher._custom_op_handlers = self._kernels_table(dispatcher)

    def swap(self, left: int | None, resumed: int) -> None:
        """Put the table of the resumed rank in place of the present one, which is kept for its rank."""
        if _API not in sys.modules or (dispatcher := _dispatcher()) is None:
            return
        if left is not None:
            self._tables[left] = dispatcher._custom_op_handlers
        if resumed not in self._tables:
            self._tables[resumed] = dict(self._kernels_table(dispatcher))
        dispatcher._custom_op_handlers = self._tables[resumed]

    def leave(self, rank: int) -> None:
        """Keep the table of the present rank, which will be resumed."""
        if (dispatcher := _dispatcher()) is not None:
            self._tables[rank] = dispatcher._custom_op_handlers

    def _kernels_table(self, dispatcher: Any) -> _Table:
        """The kernel's; that of a new dispatcher, if DTensor was first imported by a rank."""
        if self._kernels is None:
            self._kernels = type(dispatcher)()._custom_op_handlers
        return self._kernels


def _dispatcher() -> Any:
    """What calls DTensor's operators; None as long as nobody has imported DTensor."""
    api = sys.modules.get(_API)
    tensor = getattr(api, "DTensor", None)
    return None if tensor is None else tensor._op_dispatcher
