"""Unit 00: ranks, where they sit, the first messages, Amdahl's law."""

UNIT = "00_hello_ranks"
SECTIONS = ("amdahl_speedup", "rank_coordinates", "pass_the_token", "mend_statistics")
