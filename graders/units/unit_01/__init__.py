"""Unit 01: training on a single device."""

UNIT = "01_single_gpu"
SECTIONS = (
    "train_step",
    "evaluate",
    "fit",
    "accumulate_gradients",
    "measure_throughput",
    "training_memory_bytes",
)
