"""Unit 11: Compression."""

UNIT = "11_compression"
SECTIONS = ("half", "levels", "dequantise", "signs", "largest", "waiting", "low_rank", "pays_off", "fewest_bytes")
