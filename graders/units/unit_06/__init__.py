"""Unit 06: Tensor parallel."""

UNIT = "06_tensor_parallel"
SECTIONS = (
    "f",
    "g",
    "column_parallel_linear",
    "row_parallel_linear",
    "halves",
    "randomness",
    "vocabulary",
    "loss",
    "gather_sequence",
    "scatter_sequence",
    "sequence_layer",
    "layouts",
    "costs",
    "overlap",
)
