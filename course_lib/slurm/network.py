"""Which network interface has an address: what Gloo wants to be told on a node with several."""

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915
"""From <linux/sockios.h>: asks for the IPv4 address of an interface."""


def interface_with(address: str) -> str | None:
    """The interface of this machine that has the IPv4 `address`; None if there is none, as for IPv6."""
    wanted = address.removeprefix("::ffff:")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == wanted:
                return name
    return None
