"""Running a notebook: its kernel meets no other on a port, and one that does not start is a sentence."""

import asyncio
import gc
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
import zmq
import zmq.asyncio
from jupyter_client.session import Session
from jupyter_core.utils import run_sync
from nbformat.v4 import new_code_cell, new_notebook

from workbook import execute as execution
from workbook.execute import ExecutionFailed, execute
from workbook.run_notebook import LooksAgain, OwnSocketsManager

CONNECTION = """
import json
from pathlib import Path
from ipykernel import get_connection_file
connection = json.loads(Path(get_connection_file()).read_text())
print(connection["transport"], connection["ip"])
"""


def written(folder: Path, source: str) -> Path:
    path = folder / "notebook.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(source)]), path)
    return path


@pytest.mark.parametrize("depth", [0, 120], ids=["short", "long"])
def test_a_kernel_has_sockets_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int):
    # Invariant: files, however long the path of the temporary directory is, and none is left.
    temporary = Path(tempfile.mkdtemp()) / ("d" * depth)
    temporary.mkdir(exist_ok=True)
    monkeypatch.setenv("TMPDIR", str(temporary))
    execute(written(tmp_path, CONNECTION), tmp_path / "out" / "executed.ipynb", {})
    executed = nbformat.read(tmp_path / "out" / "executed.ipynb", as_version=4)
    transport, place = executed.cells[-1].outputs[0].text.split()
    assert transport == "ipc"
    assert not Path(place).parent.exists()
    assert not list(temporary.iterdir())


def test_kernels_side_by_side_share_no_socket_and_leave_none():
    managers = [OwnSocketsManager() for _ in range(20)]
    folders = [Path(manager.ip).parent for manager in managers]
    assert len(set(folders)) == 20
    assert all(folder.is_dir() for folder in folders)
    # Ended in order, or forgotten: the sockets go with their kernel, not with the process that started it.
    first, *_ = managers
    run_sync(first.cleanup_resources)()
    assert not folders[0].exists()
    del first, managers, _
    gc.collect()
    assert not any(folder.exists() for folder in folders)


def test_a_notebook_finds_what_pythonpath_names_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # Invariant: the notebook runs in its output's folder; `PYTHONPATH=.` is where the command was given.
    (tmp_path / "named_from_here.py").write_text("here = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([".", str(Path(execution.__file__).parents[1])]))
    execute(written(tmp_path, "import named_from_here"), tmp_path / "out" / "executed.ipynb", {})


def test_a_kernel_that_does_not_start_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kernel = tmp_path / "kernels" / "python3"
    kernel.mkdir(parents=True)
    silent = {"argv": ["sleep", "600"], "display_name": "Python 3", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(silent))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setattr(execution, "START_SECONDS", 1)
    with pytest.raises(ExecutionFailed, match="The notebook's kernel was not ready within 1 s"):
        execute(written(tmp_path, "1"), tmp_path / "out" / "executed.ipynb", {})


def test_a_reply_is_heard_whose_wake_up_a_message_to_the_kernel_has_taken() -> None:
    # Invariant: what nbclient sends for a widget, past asyncio, leaves no reply unheard.
    async def waits_while_somebody_sends() -> dict[str, Any]:
        context, session = zmq.asyncio.Context(), Session()
        with context.socket(zmq.DEALER) as here, zmq.Context().socket(zmq.ROUTER) as kernel:
            kernel.linger = here.linger = 0
            port = kernel.bind_to_random_port("tcp://127.0.0.1")
            here.connect(f"tcp://127.0.0.1:{port}")
            channel = LooksAgain(here, session)
            channel.send(session.msg("first"))
            identity = kernel.recv_multipart()[0]
            waiting = asyncio.ensure_future(channel.get_msg(timeout=600))
            await asyncio.sleep(0.2)
            session.send(kernel, "reply", ident=identity)
            # It arrives while asyncio is not looking, and the next message takes its wake-up.
            time.sleep(0.2)
            channel.send(session.msg("second"))
            return await asyncio.wait_for(waiting, 60)

    assert asyncio.run(waits_while_somebody_sends())["msg_type"] == "reply"
