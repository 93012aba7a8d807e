"""Unit 08: Asynchrony."""

UNIT = "08_asynchrony"
SECTIONS = ("example",)
