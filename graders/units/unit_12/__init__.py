"""Unit 12: Hybrid."""

UNIT = "12_hybrid"
SECTIONS = (
    "meshes",
    "averaging",
    "steps",
    "norms",
    "halos",
    "convolutions",
    "statistics",
    "tournaments",
    "choosing",
)
