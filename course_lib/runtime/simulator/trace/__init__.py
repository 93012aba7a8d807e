"""Ranks without data: each captured by itself as a program, then all replayed together.

It runs in the process that launches, inside one launch. Imports the simulator and `communication`.
"""
