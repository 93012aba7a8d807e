"""Unit 09: Memory."""

UNIT = "09_memory"
SECTIONS = (
    "shards",
    "optimizer",
    "gradients",
    "fully_sharded",
    "norms",
    "whole_state",
    "offload",
    "segments",
    "out_of_core",
    "planning",
)
