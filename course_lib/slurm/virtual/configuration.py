"""What a virtual cluster claims to have, and the files in which Slurm and its own processes read that."""

import json
import os
import pwd
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from course_lib.slurm.virtual import sandbox

PROGRAMS = ("slurmctld", "slurmd", "srun", "unshare", "nsenter", "ip")
"""What must be installed."""

HEAD = "head"
NETWORK = "10.77.0"
HEAD_ADDRESS = f"{NETWORK}.254"

_CONFIGURATION = """\
ClusterName=course
SlurmctldHost={head}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
# A requeued job may start after so many seconds, not after 120.
AuthInfo=cred_expire=5
# sbatch --test-only refuses what no node could ever run.
EnforcePartLimits=ALL
SlurmctldPidFile={directory}/run/slurmctld.pid
SlurmdPidFile={directory}/run/slurmd-%n.pid
SlurmctldLogFile={directory}/log/slurmctld.log
SlurmdLogFile={directory}/log/slurmd-%n.log
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobCompType=jobcomp/filetxt
JobCompLoc={directory}/log/jobcomp.txt
# A batch job starts at once where there is room, not with the others of the next three seconds; one that
# waited for its time or its turn within five seconds, not within 60.
SchedulerParameters=batch_sched_delay=0,sched_interval=5
# Jobs' numbers have seven digits, as on clusters, so none is a port; scripts make one of the last four, which
# begin with a zero now and then.
FirstJobId=4210801
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=1000
# Nodes claim more cores and memory than the machine has.
SlurmdParameters=config_overrides
SlurmdTimeout=10
KillWait=5
ReturnToService=2
MinJobAge=86400
GresTypes=gpu
NodeName=node[1-{nodes}] CPUs={cpus} RealMemory=256000{gres}
PartitionName=main Nodes=ALL Default=YES MaxTime=1-0 DefaultTime=10 State=UP
"""


class ClusterFailed(RuntimeError):
    """The cluster could not be started or reached; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the cluster claims to have: cores and GPUs that Slurm hands out, whatever the machine has.

    A claimed GPU is another name of /dev/null: jobs get CUDA_VISIBLE_DEVICES and wait for each other, but
    find no device. sandboxed: jobs see nothing of this machine but the system and Python, see
    `course_lib.slurm.virtual.sandbox`; else they may do whatever their user may.
    """

    nodes: int = 2
    cpus: int = 8
    gpus: int = 2
    sandboxed: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= 200 or self.cpus < 1 or self.gpus < 0:
            raise ClusterFailed(
                f"A virtual cluster has 1 to 200 nodes with at least one core each; got {self.nodes} nodes "
                f"with {self.cpus} cores and {self.gpus} GPUs."
            )

    @property
    def names(self) -> list[str]:
        return [f"node{number}" for number in range(1, self.nodes + 1)]


@dataclass(frozen=True, slots=True)
class ClusterFolder:
    """The files of a cluster."""

    path: Path

    @property
    def configuration(self) -> Path:
        return self.path / "slurm.conf"

    @property
    def shared(self) -> Path:
        """A folder that all nodes see, gone when the cluster stops."""
        return self.path / "shared"

    @property
    def supervisor(self) -> Path:
        """Holds the process id of the supervisor."""
        return self.path / "supervisor"

    @property
    def init(self) -> Path:
        """Holds the process id, outside of the namespaces, of the head's process 1."""
        return self.path / "init"

    @property
    def ready(self) -> Path:
        return self.path / "ready"

    @property
    def log(self) -> Path:
        """What the supervisor and the nodes' first processes say."""
        return self.path / "log" / "cluster.log"

    def node(self, name: str) -> Path:
        """Holds the process id, on the head, of a node's process 1."""
        return self.path / "run" / name

    @property
    def shape(self) -> Shape:
        return Shape(**json.loads((self.path / "shape").read_text()))

    def prepare(self, shape: Shape) -> None:
        """Make the folder, with all that the cluster reads when it starts."""
        shutil.rmtree(self.path, ignore_errors=True)
        # In the sandbox another user has to find the way through it.
        self.path.mkdir(mode=0o755 if shape.sandboxed else 0o700, parents=True)
        for name in ("state", "spool", "log", "run", "shared", "gpu"):
            (self.path / name).mkdir()
        if shape.sandboxed:
            sandbox.user_files(sandbox.user_for_jobs(), self.path)
        (self.path / "shape").write_text(json.dumps(asdict(shape)))
        addresses = [f"{NETWORK}.{number} {name}" for number, name in enumerate(shape.names, 1)]
        hosts = ["127.0.0.1 localhost", f"{HEAD_ADDRESS} {HEAD}", *addresses]
        (self.path / "hosts").write_text("\n".join(hosts) + "\n")
        self._write_configuration(shape)

    def _write_configuration(self, shape: Shape) -> None:
        self.configuration.write_text(
            _CONFIGURATION.format(
                head=HEAD,
                user=sandbox.USER if shape.sandboxed else _user_name(),
                directory=self.path,
                nodes=shape.nodes,
                cpus=shape.cpus,
                gres=f" Gres=gpu:{shape.gpus}" if shape.gpus else "",
            )
        )
        devices = [self.path / "gpu" / f"gpu{number}" for number in range(shape.gpus)]
        for device in devices:
            device.touch()
        lines = ["AutoDetect=off", *(f"Name=gpu File={device}" for device in devices)]
        (self.path / "gres.conf").write_text("\n".join(lines) + "\n")


LIBRARY = Path(__file__).parents[3]
"""The folder of which Python imports `course_lib`, here and on the nodes."""


def missing_programs() -> list[str]:
    """Those of `PROGRAMS` that are not installed."""
    path = search_path()
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


def environment_for(configuration: Path) -> dict[str, str]:
    """This process's environment with Slurm's place in it, and nothing of a job that it may belong to."""
    path = os.environ.get("PYTHONPATH", "")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return kept | {
        "SLURM_CONF": str(configuration),
        "PATH": search_path(),
        "PYTHONPATH": os.pathsep.join([str(LIBRARY), *([path] if path else [])]),
    }


def search_path() -> str:
    """Where programs are looked for: Slurm's daemons stand where a plain user's PATH may not lead."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def number_in(path: Path) -> int:
    """The number that a file holds; 0 if there is none yet."""
    try:
        return int(path.read_text() or 0)
    except FileNotFoundError:
        return 0


def _user_name() -> str:
    """Slurm wants the name that belongs to the user id, whatever $USER says."""
    return pwd.getpwuid(os.getuid()).pw_name
