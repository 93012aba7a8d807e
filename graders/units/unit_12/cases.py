"""Groups of ranks that the exercises of unit 12 share."""

THREES = [[0, 2, 5], [1, 3, 4]]
"""Groups in which a rank's place is neither its number modulo 3 nor which half of all ranks it is in."""
