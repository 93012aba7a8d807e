"""Fills the memory."""


def rank_coordinates(rank, gpus_per_node):
    held = []
    while True:
        held.append(bytearray(b"x" * 2**26))
