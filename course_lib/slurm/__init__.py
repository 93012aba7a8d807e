"""Batch systems: sites and what they allow, scripts for them, and a real Slurm on one machine to try them."""
