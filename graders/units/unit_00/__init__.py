"""Unit 00: ranks, where they sit, the first messages, Amdahl's law."""

UNIT = "00_hello_ranks"
SECTIONS = ("speedup", "coordinates", "messages", "mending")
