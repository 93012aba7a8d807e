"""Groups in which unit 10's exercises are tried."""

PAIRS = [[0, 1], [2, 4], [3, 5]]
"""A rank's place in its pair is neither its number modulo 2 nor which half of all ranks it is in."""
