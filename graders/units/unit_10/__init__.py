"""Unit 10: Experts."""

UNIT = "10_experts"
SECTIONS = (
    "top_k_gate",
    "dispatch_plan",
    "dispatch",
    "combine",
    "expert_parallel_mlp",
    "load_balancing_loss",
    "hierarchical_all_to_all",
    "place_experts",
)
