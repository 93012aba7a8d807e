"""Unit 08: parameter servers and asynchrony."""

UNIT = "08_asynchrony"
SECTIONS = (
    "server_bandwidth",
    "parameter_server_sgd",
    "place_parameters",
    "deal_dynamically",
    "downpour_sgd",
    "staleness",
    "bounded_clock",
    "ssp_sgd",
    "tree_step",
    "local_sgd",
    "federated_round",
    "design_averaging",
)
