"""Unit 05: pipeline parallelism."""

UNIT = "05_pipeline_parallel"
SECTIONS = (
    "balance_stages",
    "stage_by_hand",
    "micro_batches",
    "kept",
    "synchronous",
    "stashing",
    "partitions",
    "planning",
)
