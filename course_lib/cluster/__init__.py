"""The machines that runs happen on: topology and links, presets of real systems, NUMA nodes.

Pure data, read in every process; imports nothing of the course but its errors.
"""
