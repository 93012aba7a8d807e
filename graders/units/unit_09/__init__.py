"""Unit 09: Memory."""

UNIT = "09_memory"
SECTIONS = (
    "zero_memory",
    "shard_range",
    "sharded_optimizer",
    "sharded_gradients",
    "fully_sharded_unit",
    "prefetch",
    "clip_grad_norm",
    "gather_state",
    "host_offload",
    "checkpoint_segments",
    "out_of_core_plan",
    "plan_memory",
)
