"""Unit 01: training on a single device."""
