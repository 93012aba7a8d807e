"""Batch systems: sites and what they allow, scripts for them, and a real Slurm on one machine to try them.

It runs where jobs are submitted from, in the command `course` or a kernel, on login nodes as well: so it
imports neither torch nor anything of the course but its own modules and `versions`. Launch, workbook and
graders use it.
"""
