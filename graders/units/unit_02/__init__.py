"""Unit 02: data parallelism."""
