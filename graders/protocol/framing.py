"""Messages on a socket: eight bytes of length, then the bytes."""

import socket
import struct
import time

from graders.protocol.codec import MAX_MESSAGE

_LENGTH = struct.Struct(">Q")


MOST_ORDER_BYTES = 2**17
"""Of an order to a fork server and of its answer, each a packet: room for what became of 1,024 ranks."""


class ChannelClosed(Exception):
    """The other side is gone, or sends what is no frame."""


class TooSlow(Exception):
    """The other side did not send a whole frame in time."""


def send_frame(channel: socket.socket, message: bytes) -> None:
    """Send one message. Raises ChannelClosed, or TooSlow if the socket has a time-out and it passes."""
    try:
        channel.sendall(_LENGTH.pack(len(message)) + message)
    except TimeoutError as error:
        raise TooSlow from error
    except OSError as error:
        raise ChannelClosed from error


def receive_frame(channel: socket.socket, seconds: float | None = None) -> bytes:
    """The next message; within `seconds`, if these are given. Raises ChannelClosed, TooSlow."""
    deadline = None if seconds is None else time.monotonic() + seconds
    (length,) = _LENGTH.unpack(_receive(channel, _LENGTH.size, deadline))
    if length > MAX_MESSAGE:
        raise ChannelClosed
    return _receive(channel, length, deadline)


def _receive(channel: socket.socket, size: int, deadline: float | None) -> bytes:
    """Exactly `size` bytes, by the deadline: a sender of single bytes gains no time."""
    received = bytearray()
    while len(received) < size:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TooSlow
            channel.settimeout(left)
        try:
            part = channel.recv(min(size - len(received), 2**20))
        except TimeoutError as error:
            raise TooSlow from error
        except OSError as error:
            raise ChannelClosed from error
        if not part:
            raise ChannelClosed
        received += part
    return bytes(received)
