"""A real Slurm of several nodes on one Linux machine."""
