"""Unit 09: Memory."""

UNIT = "09_memory"
SECTIONS = ("shards", "offload", "segments", "out_of_core", "planning")
