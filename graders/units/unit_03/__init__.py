"""Unit 03: many nodes."""

UNIT = "03_multi_node"
SECTIONS = (
    "hostlists",
    "ranks",
    "batch_scripts",
    "forms",
    "containers",
    "binding",
    "intervals",
    "saving",
    "loading",
    "resuming",
    "stopping",
    "elastic",
)
