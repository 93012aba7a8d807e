"""Unit 03: many nodes."""

UNIT = "03_multi_node"
SECTIONS = (
    "expand_hostlist",
    "rank_from_environment",
    "batch_scripts",
    "form_to_script",
    "containers",
    "cpu_bind_map",
    "misplaced_cpus",
    "checkpoint_interval",
    "saving",
    "loading",
    "resuming",
    "stopping",
    "elastic_batch",
)
