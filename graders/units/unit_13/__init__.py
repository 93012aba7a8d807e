"""Unit 13: Automatic."""

UNIT = "13_automatic"
SECTIONS = (
    "op_strategies",
    "reshard",
    "reshard_cost",
    "reshard_path",
    "best_chain",
    "best_intra",
    "best_inter",
    "pipedream_hierarchy",
    "simulate",
    "resimulate",
    "search",
    "plan",
)
