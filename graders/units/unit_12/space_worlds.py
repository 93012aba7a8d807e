"""Groups in which unit 12's convolutions are tried."""

THREES = [[0, 2, 5], [1, 3, 4]]
"""A rank's place in its group is neither its number modulo 3 nor which half of all ranks it is in."""

ALONE = [[0], [1], [2]]
"""Of three ranks each is a group: none has anything to do with another."""
