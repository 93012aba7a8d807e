"""Environment variables on their way from one Slurm command to the next.

Slurm describes a job to its processes by the same variables by which its commands take options. So what a
step, or a portal's session, has inherited silently changes what a command inside of it does: SLURM_NTASKS
the number of tasks, SLURM_EXPORT_ENV=NONE (Open OnDemand) what programs are found, SLURM_MEM_PER_CPU whether
a job is accepted at all.
"""

from collections.abc import Mapping

_WHERE_SLURM_IS = frozenset({"SLURM_CONF", "SLURM_CLUSTERS"})

_WHICH_JOB = _WHERE_SLURM_IS | {
    "SLURM_JOB_ID",
    "SLURM_JOBID",
    "SLURM_JOB_NAME",
    "SLURM_JOB_NODELIST",
    "SLURM_NODELIST",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NNODES",
    "SLURM_JOB_CPUS_PER_NODE",
    "SLURM_CLUSTER_NAME",
    "SLURM_SUBMIT_DIR",
}
"""What a command needs to know the allocation that it runs in."""

_OF_A_COMMAND = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_")
_OF_A_RANK = (
    "PMI_",
    "PMIX_",
    "PMI2_",
    "OMPI_COMM_",
    "OMPI_UNIVERSE_",
    "MV2_COMM_",
    "HOROVOD_",
    "TORCHELASTIC_",
)
_OF_TORCHRUN = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
        *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
    }
)


def for_a_step(environment: Mapping[str, str]) -> dict[str, str]:
    """What a step of the present job should be started with: the job, and no options of an outer step."""
    return _without(environment, kept=_WHICH_JOB)


def for_a_job(environment: Mapping[str, str]) -> dict[str, str]:
    """What a new job should be submitted with: nothing of the job that it is submitted from."""
    return _without(environment, kept=_WHERE_SLURM_IS)


def _without(environment: Mapping[str, str], kept: frozenset[str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name in kept or not (name.startswith((*_OF_A_COMMAND, *_OF_A_RANK)) or name in _OF_TORCHRUN)
    }
