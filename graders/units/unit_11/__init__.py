"""Unit 11: Compression."""

UNIT = "11_compression"
SECTIONS = ("half", "levels", "signs", "largest", "waiting", "low_rank", "paying", "fewest_bytes")
