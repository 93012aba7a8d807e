"""Unit 08: parameter servers and asynchrony."""

UNIT = "08_asynchrony"
SECTIONS = (
    "one_server",
    "synchronous",
    "placement",
    "dealing",
    "downpour",
    "bounded",
    "reduction_trees",
    "local_steps",
    "federation",
    "design",
)
