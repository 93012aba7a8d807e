"""Unit 12: Hybrid."""

UNIT = "12_hybrid"
SECTIONS = (
    "mesh_coordinates",
    "groups",
    "hsdp_average",
    "steps",
    "grad_norm_3d",
    "halos",
    "convolutions",
    "statistics",
    "tournaments",
    "choosing",
)
