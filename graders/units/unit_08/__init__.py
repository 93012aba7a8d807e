"""Unit 08: parameter servers and asynchrony."""

UNIT = "08_asynchrony"
SECTIONS = (
    "server_bandwidth",
    "synchronous",
    "place_parameters",
    "dealing",
    "downpour_sgd",
    "staleness",
    "bounded_clock",
    "ssp_sgd",
    "reduction_trees",
    "local_steps",
    "federation",
    "design",
)
