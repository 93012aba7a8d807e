"""Unit 06: Tensor parallel."""

UNIT = "06_tensor_parallel"
SECTIONS = ("conjugates", "layers")
