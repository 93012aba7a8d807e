"""Unit 03: many nodes."""

UNIT = "03_multi_node"
SECTIONS = (
    "expand_hostlist",
    "rank_from_environment",
    "batch_script",
    "form_to_script",
    "container_command",
    "cpu_bind_map",
    "misplaced_cpus",
    "checkpoint_interval",
    "save_checkpoint",
    "load_latest",
    "resume",
    "save_on_signal",
    "elastic_batch",
)
