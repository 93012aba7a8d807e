"""Unit 06: Tensor parallel."""

UNIT = "06_tensor_parallel"
SECTIONS = (
    "f",
    "g",
    "layers",
    "halves",
    "randomness",
    "vocabulary",
    "loss",
    "sequences",
    "sequence_layer",
    "layouts",
    "costs",
    "overlap",
)
