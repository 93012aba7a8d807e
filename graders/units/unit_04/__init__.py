"""Unit 04: Horovod."""

UNIT = "04_horovod"
SECTIONS = (
    "warmup_lr",
    "mend_warmup",
    "broadcast_state",
    "average_metrics",
    "plan_fusion",
    "fuse",
    "unfuse",
    "ready_everywhere",
    "distributed_optimizer",
    "overlap_fraction",
    "six_steps",
    "tune_fusion",
)
