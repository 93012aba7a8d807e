"""Unit 07: collectives."""

UNIT = "07_collectives"
SECTIONS = (
    "rooted",
    "trees",
    "rings",
    "doubling",
    "halving",
    "hierarchies",
    "exchange",
    "costs",
    "fitting",
    "hangs",
    "hangs_of_many",
    "hangs_of_errors",
    "mpi",
    "design",
)
