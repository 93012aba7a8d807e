"""Unit 13: Automatic."""

UNIT = "13_automatic"
SECTIONS = ("strategies", "prices", "choices", "simulating", "deltas", "walks")
