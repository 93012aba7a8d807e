"""Unit 13: Automatic."""

UNIT = "13_automatic"
SECTIONS = (
    "strategies",
    "moving",
    "prices",
    "ways",
    "choices",
    "staging",
    "levels",
    "simulating",
    "deltas",
    "walks",
    "planning",
)
