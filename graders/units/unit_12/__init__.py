"""Unit 12: Hybrid."""

UNIT = "12_hybrid"
SECTIONS = ("meshes",)
"""Groups in which unit 12's exercises are tried."""
