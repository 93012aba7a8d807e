"""Unit 04: Horovod."""

UNIT = "04_horovod"
SECTIONS = (
    "learning_rate",
    "same_start",
    "metrics",
    "fusion",
    "buffers",
    "negotiation",
    "optimizer",
    "timelines",
    "six_steps",
    "tuning",
)
