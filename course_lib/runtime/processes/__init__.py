"""Ranks as processes, here or on the nodes of an allocation, each of whose calls is logged.

In the launcher: `agents` and `slurm_step` (the other ends of the agents), `warm_process`, `watchdog`,
`cell_watchdog`, `observed_run` and `rank_failures` (what the logs say together), `serialization`, `backend`.
In an agent, which is forked on this machine or is a task of a Slurm step: `node_agent`, `rank_holder`,
`held_rank`, `launch_folder`. In a rank: `rank_life`; where it computes with PyTorch `rank`, `logged_group`,
`logged_calls`, `completion`, and `renewable` where it stays; in the Python of another environment
`rank_apart`; in a group of Horovod's `horovod_group`. On both sides of a connection: `protocol`, `tcp`,
`meeting`, `by_value`, `call_log`, `stacks`, `rank_environment`, `process_tree`. `mpi_rank` is run as a file
by mpirun, which `guarded` starts.

It imports what simulated and real ranks share, the cluster and the errors: never launch.
"""
