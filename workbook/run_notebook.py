"""`python -m workbook.run_notebook NOTEBOOK OUTPUT ...`: papermill, whose kernels meet on nobody's port.

jupyter_client gives a kernel five TCP ports that were free a moment ago. Kernels that start side by side can
be given the same ones, and then one of them waits for ever. Here a kernel's sockets are files in a folder of
its own.

nbclient answers a widget on the socket on which it waits for the kernel's reply, and jupyter_client sends
past asyncio there: then nobody is told of a reply that has come meanwhile. Here one looks every second.
"""

import tempfile
import weakref
from contextlib import ExitStack
from queue import Empty
from typing import Any

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.channels import AsyncZMQSocketChannel
from jupyter_client.manager import AsyncKernelManager
from papermill.cli import papermill
from papermill.engines import NBClientEngine, papermill_engines
from traitlets import Type, default

from course_lib.scratch import scratch_folder

_LONGEST = 107
"""Bytes of a socket's path that Linux takes; other systems take 103."""


class KernelNotStarted(RuntimeError):
    """A kernel was not there in time; the message says after how long, and what to look at."""


class LooksAgain(AsyncZMQSocketChannel):
    """A channel that finds a message of which it was not told."""

    async def get_msg(  # type: ignore[override]  # jupyter_client says so of its own, too
        self, timeout: float | None = None
    ) -> dict[str, Any]:
        left = float("inf") if timeout is None else timeout
        while True:
            try:
                return await super().get_msg(timeout=min(1.0, left))
            except Empty:
                left -= 1.0
                if left <= 0:
                    raise


class _Client(AsyncKernelClient):
    """Says in a sentence that a kernel did not start, and hears every reply."""

    shell_channel_class = Type(LooksAgain)

    async def _async_wait_for_ready(self, timeout: float | None = None) -> None:
        try:
            await super()._async_wait_for_ready(timeout)
        except RuntimeError as error:
            raise KernelNotStarted(
                f"The notebook's kernel was not ready within {timeout:g} s ({error}). What it printed stands "
                f"above; a machine under load needs more time: --start-timeout."
            ) from None

    wait_for_ready = _async_wait_for_ready


class OwnSocketsManager(AsyncKernelManager):
    """A kernel that can be started beside any number of others. Its sockets go with it."""

    def __init__(self, **options: Any) -> None:
        temporary, held = tempfile.gettempdir(), ExitStack()
        fits = len(f"{temporary}/course-0123456789abcdef/s-5") <= _LONGEST - 4
        folder = held.enter_context(scratch_folder(temporary if fits else "/tmp"))
        super().__init__(transport="ipc", ip=str(folder / "s"), **options)
        # Where nobody ends the kernel in order, with this object, or with this process.
        self._remove_sockets = weakref.finalize(self, held.close)

    async def _async_cleanup_resources(self, restart: bool = False) -> None:
        await super()._async_cleanup_resources(restart)
        if not restart:
            self._remove_sockets()

    cleanup_resources = _async_cleanup_resources

    @default("client_factory")
    def _client_that_tells(self) -> type[_Client]:
        return _Client


class _Engine(NBClientEngine):  # type: ignore[misc]  # papermill has no types.
    """papermill's own way to execute a notebook, with such a kernel."""

    @classmethod
    def execute_managed_notebook(cls, notebook: Any, kernel_name: str, **options: Any) -> None:
        super().execute_managed_notebook(
            notebook, kernel_name, kernel_manager_class=OwnSocketsManager, **options
        )


if __name__ == "__main__":
    papermill_engines.register(None, _Engine)
    papermill()
