"""Unit 07: collectives."""

UNIT = "07_collectives"
SECTIONS = (
    "scatter_from",
    "gather_to",
    "broadcast_tree",
    "reduce_tree",
    "ring_reduce_scatter",
    "ring_all_gather",
    "ring_all_reduce",
    "recursive_doubling_all_reduce",
    "halving_doubling_all_reduce",
    "hierarchical_all_reduce",
    "all_to_all_pairwise",
    "predict_time",
    "fit_alpha_beta",
    "causes_of_hangs",
    "mend_swap",
    "mend_shift",
    "mend_report",
    "mend_grid_sums",
    "mend_collect",
    "mend_chain",
    "mpi_ring_all_reduce",
    "design_all_reduce",
)
