"""Unit 02: data parallelism."""

UNIT = "02_data_parallel"
SECTIONS = (
    "combine_gradients",
    "shard_indices",
    "broadcast_parameters",
    "average_gradients",
    "make_buckets",
    "bucket",
    "bucketed_ddp",
    "global_accuracy",
    "load_once",
    "train_ddp",
)
