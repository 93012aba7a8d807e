"""Unit 12: Hybrid."""

UNIT = "12_hybrid"
SECTIONS = (
    "meshes",
    "averaging",
    "norms",
    "halos",
    "convolutions",
    "statistics",
    "tournaments",
    "choosing",
)
