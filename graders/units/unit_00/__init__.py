"""Unit 00: ranks, where they sit, the first messages, Amdahl's law."""
