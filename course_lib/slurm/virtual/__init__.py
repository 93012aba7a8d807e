"""A real Slurm of several nodes on one machine: its configuration, its life, its namespaces, its sandbox.

`lifecycle` runs in the process that the cluster belongs to, `namespaces` in the cluster's own processes. It
imports nothing but itself.
"""
