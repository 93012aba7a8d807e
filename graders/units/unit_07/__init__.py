"""Unit 07: collectives."""
