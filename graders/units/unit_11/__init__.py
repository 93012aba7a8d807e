"""Unit 11: Compression."""

UNIT = "11_compression"
SECTIONS = ("half", "levels", "dequantise", "one_bit", "top_k", "largest", "dgc_step", "waiting", "low_rank", "pays_off", "fewest_bytes")
