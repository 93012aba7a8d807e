"""Where the ranks of a launch find each other: in a file on one machine, in a store on a node of a step."""

import socket
from datetime import timedelta

from torch._C._distributed_c10d import FileStore, Store, TCPStore

from course_lib.runtime.communication.torch_versions import before
from course_lib.runtime.processes.launch_folder import LaunchFolder
from course_lib.runtime.processes.protocol import Start

_SECONDS = 60
"""How long a rank tries to reach the store."""

_LIBUV = not before((2, 8))
"""Whether the store that PyTorch opens by default can take over a socket that listens. Ranks cannot tell it
from the former one.
"""


def open_store(start: Start, listener: socket.socket | None) -> TCPStore | None:
    """Open the store of a step, if this agent holds rank 0: that one listens on the port that all know."""
    if start.store is None or listener is None or 0 not in start.arguments:
        return None
    host, port = start.store
    return TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        use_libuv=_LIBUV,
    )


def store_for_rank(folder: LaunchFolder, start: Start) -> Store:
    """The store, for a rank."""
    if start.store is None:
        return FileStore(str(folder.store), start.plan.ranks)
    host, port = start.store
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=_SECONDS))
