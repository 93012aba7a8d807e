"""Unit 09: Memory."""

UNIT = "09_memory"
SECTIONS = ("shards",)
