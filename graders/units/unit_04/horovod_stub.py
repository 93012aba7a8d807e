"""What horovodrun starts for a rank: has a warm process fork the rank, and ends as that ends.

Run as `python horovod_stub.py FOLDER`, where `horovod_forker` listens. It imports next to nothing.
"""

import json
import os
import socket
import sys
import time


def main() -> int:
    """Hand over environment, output and errors; returns the rank's exit status, 1 if it tells none."""
    os.chdir(sys.argv[1])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        while True:
            try:
                connection.connect("forker")
                break
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(0.01)
        socket.send_fds(connection, [json.dumps(dict(os.environ)).encode()], [1, 2])
        status = connection.recv(1)
    return status[0] if status else 1


if __name__ == "__main__":
    sys.exit(main())
