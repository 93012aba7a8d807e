"""Unit 05: pipeline parallelism."""

UNIT = "05_pipeline_parallel"
SECTIONS = (
    "balance_stages",
    "run_stage",
    "gpipe",
    "bubble_fraction",
    "peak_activations",
    "with_recomputation",
    "one_f_one_b",
    "interleaved",
    "zero_bubble",
    "weight_stash",
    "pipedream_partition",
    "plan_pipeline",
)
