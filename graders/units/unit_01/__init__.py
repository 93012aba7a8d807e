"""Unit 01: training on a single device."""

UNIT = "01_single_gpu"
SECTIONS = ("steps", "evaluation", "fitting", "accumulation", "throughput", "memory")
