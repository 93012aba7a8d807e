"""`python -m workbook.run_notebook NOTEBOOK OUTPUT ...`: papermill, whose kernels meet on nobody's port.

jupyter_client gives a kernel five TCP ports that were free a moment ago. Kernels that start side by side can
be given the same ones, and then one of them waits for ever. Here a kernel's sockets are files in a folder of
its own.
"""

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager
from papermill.cli import papermill
from papermill.engines import NBClientEngine, papermill_engines
from traitlets import default

_LONGEST = 107
"""Bytes of a socket's path that Linux takes; other systems take 103."""


class KernelNotStarted(RuntimeError):
    """A kernel was not there in time; the message says after how long, and what to look at."""


def socket_folder() -> Path:
    """A new folder for a kernel's sockets, whose paths have a greatest length."""
    temporary = tempfile.gettempdir()
    fits = len(f"{temporary}/kernel-12345678/s-5") <= _LONGEST - 4
    return Path(tempfile.mkdtemp(prefix="kernel-", dir=temporary if fits else "/tmp"))


class _Client(AsyncKernelClient):
    """Says in a sentence that a kernel did not start."""

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
        folder = socket_folder()
        super().__init__(transport="ipc", ip=str(folder / "s"), **options)
        # Where nobody ends the kernel in order, with this object, or with this process.
        self._remove_sockets = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

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
