"""Unit 03: many nodes."""

UNIT = "03_multi_node"
SECTIONS = (
    "expand_hostlist",
    "ranks",
    "batch_scripts",
    "forms",
    "containers",
    "binding",
    "checkpoint_interval",
    "saving",
    "loading",
    "resuming",
    "stopping",
    "elastic",
)
