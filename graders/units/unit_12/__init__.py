"""Unit 12: Hybrid."""

UNIT = "12_hybrid"
SECTIONS = (
    "mesh_coordinates",
    "groups",
    "hsdp_average",
    "step_3d",
    "grad_norm_3d",
    "halo_exchange",
    "spatial_conv2d",
    "filter_parallel_conv",
    "channel_parallel_conv",
    "synchronised_batch_norm",
    "tournament",
    "choose_mesh",
)
