"""Unit 03: many nodes."""
