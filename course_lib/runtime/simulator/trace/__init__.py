"""Runs of ranks without data: recorded one by one, then replayed together."""
