"""Unit 13: Automatic."""

UNIT = "13_automatic"
SECTIONS = ("strategies", "simulating", "deltas", "walks")
