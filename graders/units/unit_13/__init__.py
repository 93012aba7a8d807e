"""Unit 13: Automatic."""

UNIT = "13_automatic"
SECTIONS = (
    "op_strategies",
    "reshard",
    "reshard_cost",
    "reshard_path",
    "choices",
    "staging",
    "levels",
    "simulating",
    "deltas",
    "walks",
    "planning",
)
