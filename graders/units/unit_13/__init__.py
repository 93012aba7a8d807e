"""Unit 13: Automatic."""

UNIT = "13_automatic"
SECTIONS = (
    "op_strategies",
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
