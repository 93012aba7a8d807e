"""A process that has imported PyTorch and Horovod, and forks the ranks that horovodrun asks for.

The import takes longer than all that a rank does. A folder a line comes on standard input, and one rank is
forked for each `horovod_stub` that calls there, until the next line. It ends with its standard input.
"""

import json
import os
import select
import signal
import socket
from pathlib import Path
from threading import Thread
from typing import NoReturn

from course_lib.runtime.processes.process_tree import end_with
from graders.units.unit_04 import horovod_rank


def main() -> None:
    """Serve until standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a rank has ended
    own = os.getpid()
    while line := os.read(0, 4096):
        folder = Path(line.decode().rstrip("\n"))
        with _listening(folder) as listener:
            _serve(listener, folder, own)


def _serve(listener: socket.socket, folder: Path, own: int) -> None:
    """Fork the ranks of one run, until there is something on standard input. own: this process's number."""
    while True:
        ready, _, _ = select.select([0, listener.fileno()], [], [])
        if 0 in ready:
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            end_with(own)
            _be_rank(connection, folder)
        connection.close()


def _listening(folder: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # The name of a socket has at most 107 characters.
    os.chdir(folder)
    listener.bind("forker")
    listener.listen()
    return listener


def _be_rank(connection: socket.socket, folder: Path) -> NoReturn:
    """Become the process that horovodrun has started: its environment, its output, and its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, descriptors, _, _ = socket.recv_fds(connection, 2**20, 2)
    for number, descriptor in enumerate(descriptors, start=1):
        os.dup2(descriptor, number)
    os.environ.clear()
    os.environ.update(json.loads(message))

    def end_with_the_stub() -> None:
        connection.recv(1)
        os._exit(1)

    Thread(target=end_with_the_stub, daemon=True).start()
    status = horovod_rank.play(folder)
    connection.send(bytes([status]))
    os._exit(status)


if __name__ == "__main__":
    main()
