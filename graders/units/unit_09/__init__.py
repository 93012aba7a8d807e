"""Unit 09: Memory."""

UNIT = "09_memory"
SECTIONS = (
    "zero_memory",
    "shard_range",
    "optimizer",
    "gradients",
    "fully_sharded",
    "clip_grad_norm",
    "gather_state",
    "offload",
    "checkpoint_segments",
    "out_of_core_plan",
    "plan_memory",
)
