"""Unit 11: Compression."""

UNIT = "11_compression"
SECTIONS = (
    "fp16_hook",
    "quantise",
    "dequantise",
    "one_bit",
    "top_k",
    "sparse_all_reduce",
    "dgc_step",
    "error_feedback",
    "power_sgd",
    "pays_off",
    "design_hook",
)
