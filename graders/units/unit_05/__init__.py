"""Unit 05: Pipeline parallel."""

UNIT = "05_pipeline_parallel"
SECTIONS = ("example",)
