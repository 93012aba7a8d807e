"""Unit 04: Horovod."""

UNIT = "04_horovod"
SECTIONS = (
    "warmup_lr",
    "mend_warmup",
    "same_start",
    "metrics",
    "plan_fusion",
    "fuse",
    "unfuse",
    "negotiation",
    "optimizer",
    "overlap_fraction",
    "six_steps",
    "tuning",
)
