"""What a submitted batch script starts in place of a training: notes where it runs, and meets the others.

Run as `python -I -S batch_probe.py FOLDER STATUS WORDS...`, it writes what it finds to FOLDER and exits with
STATUS; if that is not 0, at once. It needs nothing but the standard library: a real training would take
seconds to say no more.
"""

import json
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_MEET_SECONDS = 2.0
_NAMES = ("SLURM_PROCID", "SLURM_LOCALID", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES")


def main() -> None:
    """Note this process's place, then that it has met the others, in a file of its own."""
    folder, status, *words = sys.argv[1:]
    host = socket.gethostname()
    note: dict[str, Any] = {name: os.environ.get(name) for name in _NAMES}
    note |= {"host": host, "words": words, "met": False}
    path = Path(folder) / f"{host}-{os.getpid()}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(note))
    if int(status):
        # It has failed before it could meet anybody.
        sys.exit(int(status))
    with suppress(OSError, ValueError, KeyError, OverflowError):
        rank, address, port = (os.environ[name] for name in ("SLURM_PROCID", "MASTER_ADDR", "MASTER_PORT"))
        note["met"] = _meet(int(rank), address, int(port))
    path.write_text(json.dumps(note))


def _meet(rank: int, address: str, port: int) -> bool:
    """Rank 0 waits for all others at the port; the others go to it at its address."""
    deadline = time.monotonic() + _MEET_SECONDS
    if rank > 0:
        return _go_to(address, port, deadline)
    with socket.create_server(("", port), family=socket.AF_INET) as server:
        for _ in range(int(os.environ["SLURM_STEP_NUM_TASKS"]) - 1):
            server.settimeout(max(0.001, deadline - time.monotonic()))
            guest, _ = server.accept()
            guest.close()
    return True


def _go_to(address: str, port: int, deadline: float) -> bool:
    """Try until somebody listens there."""
    while time.monotonic() < deadline:
        with suppress(ConnectionRefusedError):
            socket.create_connection((address, port), timeout=_MEET_SECONDS).close()
            return True
        time.sleep(0.02)
    return False


if __name__ == "__main__":
    main()
