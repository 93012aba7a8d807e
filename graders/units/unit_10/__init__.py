"""Unit 10: Experts."""

UNIT = "10_experts"
SECTIONS = ("top_k_gate", "dispatch_plan", "dispatch", "combine", "layers", "load_balancing_loss", "between_nodes", "placing")
