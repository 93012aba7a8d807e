"""Unit 05: pipeline parallelism."""

UNIT = "05_pipeline_parallel"
SECTIONS = (
    "balance_stages",
    "stage_by_hand",
    "gpipe",
    "bubble_fraction",
    "peak_activations",
    "with_recomputation",
    "one_f_one_b",
    "interleaved",
    "zero_bubble",
    "stashing",
    "pipedream_partition",
    "plan_pipeline",
)
