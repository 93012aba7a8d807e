"""Unit 02: data parallelism."""

UNIT = "02_data_parallel"
SECTIONS = (
    "combine_gradients",
    "sharding",
    "broadcast_parameters",
    "average_gradients",
    "buckets",
    "overlap",
    "global_accuracy",
    "loading",
    "many_processes",
)
