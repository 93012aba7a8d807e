"""Unit 06: Tensor parallel."""

UNIT = "06_tensor_parallel"
SECTIONS = (
    "f",
    "g",
    "column_parallel_linear",
    "row_parallel_linear",
    "parallel_mlp",
    "parallel_attention",
    "random_streams",
    "vocab_parallel_embedding",
    "vocab_parallel_cross_entropy",
    "gather_sequence",
    "scatter_sequence",
    "sequence_parallel_mlp",
    "required_collectives",
    "stack_costs",
    "overlapped_mlp",
)
