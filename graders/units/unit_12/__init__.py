"""Unit 12: Hybrid."""

UNIT = "12_hybrid"
SECTIONS = ("meshes", "averaging", "norms", "halos", "choosing")
"""Groups in which unit 12's exercises are tried."""
