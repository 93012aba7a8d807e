"""Unit 10: Experts."""

UNIT = "10_experts"
SECTIONS = ("gating", "plans", "travelling", "returning", "layers", "balance", "between_nodes", "placing")
