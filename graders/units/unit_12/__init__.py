"""Unit 12: Hybrid."""

UNIT = "12_hybrid"
SECTIONS = (
    "mesh_coordinates",
    "groups",
    "averaging",
    "steps",
    "norms",
    "halos",
    "convolutions",
    "statistics",
    "tournaments",
    "choosing",
)
