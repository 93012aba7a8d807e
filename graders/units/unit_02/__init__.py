"""Unit 02: data parallelism."""

UNIT = "02_data_parallel"
SECTIONS = (
    "combining",
    "sharding",
    "replicas",
    "averaging",
    "buckets",
    "overlap",
    "metrics",
    "loading",
    "many_processes",
)
