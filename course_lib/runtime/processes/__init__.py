"""Ranks as processes, here or on the nodes of an allocation, each of whose calls is logged."""
