"""Unit 08: parameter servers and asynchrony."""

UNIT = "08_asynchrony"
SECTIONS = (
    "server_bandwidth",
    "synchronous",
    "place_parameters",
    "dealing",
    "downpour",
    "bounded",
    "reduction_trees",
    "local_steps",
    "federation",
    "design",
)
