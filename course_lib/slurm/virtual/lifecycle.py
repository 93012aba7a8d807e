"""A real Slurm of several nodes on one Linux machine, for trying scripts at home, for tests and graders.

Every node has namespaces of its own (host name, network, processes, mounts), so it has its own address and
its own loopback: `MASTER_ADDR=localhost` on two nodes fails here as it does on a real cluster. Nodes share
all file systems but /tmp and /dev/shm, as real nodes do. Root is not needed where the kernel lets users make
namespaces; Slurm itself must be installed (on Debian: slurmctld slurmd slurm-client).

Processes, outermost first: a supervisor (this module, outside of every namespace), the head node (process 1
of its namespace, with slurmctld), and in it the compute nodes (process 1 of a namespace each, with slurmd).
Ending the head's process 1 ends them all, whatever a job has started; the kernel does that. The supervisor
does so when it is told to stop, or when the process that the cluster belongs to has ended.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from course_lib.slurm.virtual import sandbox

PROGRAMS = ("slurmctld", "slurmd", "srun", "unshare", "nsenter", "ip")
"""What must be installed."""

_MODULE = "course_lib.slurm.virtual.lifecycle"

HEAD = "head"
_NETWORK = "10.77.0"
_HEAD_ADDRESS = f"{_NETWORK}.254"
_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
_LOOK_SECONDS = 0.05

_NAMESPACES = ("--mount", "--uts", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")

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


def missing_programs() -> list[str]:
    """Those of `PROGRAMS` that are not installed."""
    path = _path()
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


def default_directory() -> Path:
    """Where this user's cluster keeps its state."""
    return Path(tempfile.gettempdir()) / f"course-cluster-{os.getuid()}"


@dataclass(frozen=True, slots=True)
class VirtualCluster:
    """One cluster, known by its directory, which only its user can read and which is gone when it stops."""

    directory: Path

    # --- Its files

    @property
    def configuration(self) -> Path:
        return self.directory / "slurm.conf"

    @property
    def shared(self) -> Path:
        """A folder that all nodes see, gone when the cluster stops."""
        return self.directory / "shared"

    @property
    def _supervisor(self) -> Path:
        """Holds the process id of the supervisor."""
        return self.directory / "supervisor"

    @property
    def _init(self) -> Path:
        """Holds the process id, outside of the namespaces, of the head's process 1."""
        return self.directory / "init"

    @property
    def _ready(self) -> Path:
        return self.directory / "ready"

    @property
    def log(self) -> Path:
        """What the supervisor and the nodes' first processes say."""
        return self.directory / "log" / "cluster.log"

    # --- For its user

    @property
    def running(self) -> bool:
        return self._ready.exists() and _is_supervisor(_number_in(self._supervisor), self.directory)

    def start(self, shape: Shape, owner: int) -> None:
        """Start it, and return when every node is idle. It ends when the process `owner` does.

        Raises ClusterFailed.
        """
        if self.running:
            raise ClusterFailed(f"A virtual cluster runs in {self.directory} already: course cluster stop.")
        if missing := missing_programs():
            raise ClusterFailed(
                f"Not installed: {', '.join(missing)}. On Debian or Ubuntu: "
                f"apt-get install slurmctld slurmd slurm-client iproute2 util-linux."
            )
        if shape.sandboxed and not sandbox.sandbox_is_possible():
            raise ClusterFailed(
                "A sandbox round the cluster needs bubblewrap, and a system that lets it make namespaces. On "
                "Debian or Ubuntu: apt-get install bubblewrap."
            )
        self._prepare(shape)
        with self.log.open("w") as log:
            supervisor = subprocess.Popen(
                _module("supervise", self.directory, owner),
                env=_environment(self.configuration),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._ready.exists():
            ended = supervisor.poll() is not None
            if ended or time.monotonic() > deadline:
                said = _tail(self.log) or "nothing was said"
                self.stop()
                raise ClusterFailed(f"The virtual cluster did not start: {said}. {_HELP}")
            time.sleep(_LOOK_SECONDS)

    def stop(self) -> None:
        """End every process of it and remove its directory. Nothing happens if there is none."""
        supervisor = _number_in(self._supervisor)
        if _is_supervisor(supervisor, self.directory):
            os.kill(supervisor, signal.SIGTERM)
            deadline = time.monotonic() + _STOP_SECONDS
            while _is_supervisor(supervisor, self.directory) and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
        shutil.rmtree(self.directory, ignore_errors=True)

    def command(self, words: Sequence[object]) -> list[str]:
        """`words` as a command that runs on the head node, in this folder; in the sandbox in the shared one.

        Raises ClusterFailed.
        """
        if not self.running:
            raise ClusterFailed(f"No virtual cluster runs in {self.directory}: course cluster start.")
        entered = ["nsenter", "--target", str(_number_in(self._init))]
        if os.getuid() != 0:
            entered += ["--user", "--preserve-credentials"]
        entered += ["--mount", "--uts", "--net", "--pid", f"--wdns={Path.cwd()}"]
        if _read_shape(self.directory).sandboxed:
            words = sandbox.in_sandbox(self.directory, words)
        return [*entered, "--", *map(str, words)]

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for commands on the head node: this process's, and where Slurm is."""
        return _environment(self.configuration)

    def run(self, words: Sequence[object], **options: Any) -> "subprocess.CompletedProcess[str]":
        """Run a command on the head node, as `subprocess.run` does."""
        settings: dict[str, Any] = {"env": self.environment, "text": True, "check": False} | options
        return subprocess.run(self.command(words), **settings)

    def crash(self, node: str) -> None:
        """End everything on a node at once, as a loss of power does. Slurm notices within half a minute."""
        init = self._node_init(node)
        self.run(["kill", "-9", init], check=True)
        (self.directory / "run" / node).unlink()

    def boot(self, node: str) -> None:
        """Start a node that has crashed. Do so once Slurm has noticed the crash: `sinfo` says "down"."""
        if (self.directory / "run" / node).exists():
            raise ClusterFailed(f"{node} is running.")
        self.run(_module("boot", self.directory, node), check=True)

    def _node_init(self, node: str) -> int:
        """The process id, on the head, of a node's process 1."""
        path = self.directory / "run" / node
        if not path.exists():
            names = ", ".join(_read_shape(self.directory).names)
            raise ClusterFailed(f"No node {node} is running. The nodes are {names}.")
        return _number_in(path)

    # --- Preparing

    def _prepare(self, shape: Shape) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        # In the sandbox another user has to find the way through it.
        self.directory.mkdir(mode=0o755 if shape.sandboxed else 0o700, parents=True)
        for name in ("state", "spool", "log", "run", "shared", "gpu"):
            (self.directory / name).mkdir()
        if shape.sandboxed:
            sandbox.user_files(sandbox.user_for_jobs(), self.directory)
        (self.directory / "shape").write_text(json.dumps(asdict(shape)))
        addresses = [f"{_NETWORK}.{number} {name}" for number, name in enumerate(shape.names, 1)]
        hosts = ["127.0.0.1 localhost", f"{_HEAD_ADDRESS} {HEAD}", *addresses]
        (self.directory / "hosts").write_text("\n".join(hosts) + "\n")
        self.configuration.write_text(
            _CONFIGURATION.format(
                head=HEAD,
                user=sandbox.USER if shape.sandboxed else _user_name(),
                directory=self.directory,
                nodes=shape.nodes,
                cpus=shape.cpus,
                gres=f" Gres=gpu:{shape.gpus}" if shape.gpus else "",
            )
        )
        devices = [self.directory / "gpu" / f"gpu{number}" for number in range(shape.gpus)]
        for device in devices:
            device.touch()
        lines = ["AutoDetect=off", *(f"Name=gpu File={device}" for device in devices)]
        (self.directory / "gres.conf").write_text("\n".join(lines) + "\n")


_HELP = (
    "It needs Linux that lets you make namespaces: root, or kernel.unprivileged_userns_clone=1 "
    "and user.max_user_namespaces above 0; in a container, one that is started with --privileged"
)


@contextmanager
def temporary_cluster(shape: Shape) -> Iterator[VirtualCluster]:
    """A cluster in a folder of its own, which ends with the block. Raises ClusterFailed."""
    with tempfile.TemporaryDirectory(prefix="vc-") as folder:
        cluster = VirtualCluster(Path(folder) / "c")
        cluster.start(shape, os.getpid())
        try:
            yield cluster
        finally:
            cluster.stop()


# --- The supervisor, outside of every namespace


def supervise(directory: Path, owner: int) -> None:
    """Start the head, and end it when the owner ends, when told to, or when it has ended itself."""
    cluster = VirtualCluster(directory)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    cluster._supervisor.write_text(str(os.getpid()))
    owners_end = os.pidfd_open(owner)
    user = [] if os.getuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
    # If this process is killed, so is `unshare`, and by --kill-child the head with all that is in it.
    head = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "unshare", *user, *_NAMESPACES, *_module("head", directory)]
    )
    try:
        init = _only_child(head.pid)
        cluster._init.write_text(str(init))
        heads_end = os.pidfd_open(init)
        try:
            select.select([owners_end, heads_end], [], [])
        finally:
            head.kill()
            # Process 1 ends after all others of its namespace.
            select.select([heads_end], [], [], _STOP_SECONDS)
    finally:
        head.kill()
        head.wait()
        shutil.rmtree(directory, ignore_errors=True)


# --- The head node, process 1 of its namespace


def head(directory: Path) -> None:
    """Be the head node: network, slurmctld, and the nodes."""
    shape = _read_shape(directory)
    _call("mount", "--bind", directory / "hosts", "/etc/hosts")
    for device in (directory / "gpu").iterdir():
        # Slurm takes nothing but a device for a GPU.
        _call("mount", "--bind", "/dev/null", device)
    _call("ip", "link", "add", "br0", "type", "bridge")
    _wire(HEAD, _HEAD_ADDRESS, "br0")
    if shape.sandboxed:
        _memory_for_jobs(directory)
    _daemon(directory, "slurmctld")
    for name in shape.names:
        boot(directory, name)
    idle = ["sinfo", "--noheader", "--states=idle", "--format=%D"]
    if shape.sandboxed:
        idle = sandbox.in_sandbox(directory, idle)
    while _output(*idle).strip() != str(shape.nodes):
        time.sleep(_LOOK_SECONDS)
    VirtualCluster(directory)._ready.touch()
    _reap_for_ever()


def boot(directory: Path, name: str) -> None:
    """Start a node; runs on the head."""
    log = VirtualCluster(directory).log.open("a")
    node = subprocess.Popen(
        ["unshare", *_NAMESPACES, *_module("node", directory, name)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    init = _only_child(node.pid)
    (directory / "run" / name).write_text(str(init))
    cable = f"to-{name}"
    # The other end of a crashed node's cable may not have gone yet.
    subprocess.run(["ip", "link", "del", cable], stderr=subprocess.DEVNULL, check=False)
    _call("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", init)
    _call("ip", "link", "set", cable, "master", "br0", "up")


# --- A compute node, process 1 of its namespace


def node(directory: Path, name: str) -> None:
    """Be a compute node."""
    _own_memory_file_systems([directory, Path.cwd(), Path(sys.prefix)])
    while subprocess.run(["ip", "link", "show", "eth0"], capture_output=True, check=False).returncode:
        time.sleep(_LOOK_SECONDS)
    _wire(name, f"{_NETWORK}.{name.removeprefix('node')}", "eth0")
    _daemon(directory, "slurmd", "-N", name)
    _reap_for_ever()


def _daemon(directory: Path, *words: str) -> None:
    """Start one of Slurm's daemons. In a sandbox it stays in the foreground, or the sandbox would end."""
    if _read_shape(directory).sandboxed:
        subprocess.Popen(sandbox.in_sandbox(directory, [*words, "-D"]), stdin=subprocess.DEVNULL)
    else:
        _call(*words)


def _memory_for_jobs(directory: Path) -> None:
    """Put the shared folder into memory, where it is bounded, for the user in the sandbox alone."""
    user = (directory / "passwd").read_text().split(":")[2]
    options = f"size={sandbox.ROOM},mode=0755,uid={user},gid={user}"
    _call("mount", "-t", "tmpfs", "-o", options, "shared", directory / "shared")


def _own_memory_file_systems(kept: Sequence[Path]) -> None:
    """Put fresh file systems on /tmp and /dev/shm, and of the old /tmp only the folders `kept` into it."""
    temporary = Path(tempfile.gettempdir()).resolve()
    inside = {path.resolve() for path in kept if path.resolve().is_relative_to(temporary)}
    held = {path: os.open(path, os.O_PATH) for path in inside - {temporary}}
    _call("mount", "-t", "tmpfs", "shm", "/dev/shm")
    _call("mount", "-t", "tmpfs", "-o", "mode=1777", "tmp", temporary)
    for path, descriptor in sorted(held.items()):
        path.mkdir(parents=True, exist_ok=True)
        _call("mount", "--no-canonicalize", "--rbind", f"/proc/{os.getpid()}/fd/{descriptor}", path)
        os.close(descriptor)


# --- Small things


def _wire(name: str, address: str, device: str) -> None:
    """Take a host name, and an address on a network device."""
    _call("hostname", name)
    _call("ip", "link", "set", "lo", "up")
    _call("ip", "addr", "add", f"{address}/24", "dev", device)
    _call("ip", "link", "set", device, "up")


def _reap_for_ever() -> None:
    """Do what process 1 must: wait for every orphan."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(_LOOK_SECONDS)


def _call(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)


def _output(*words: object) -> str:
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False).stdout


def _module(role: str, *arguments: object) -> list[str]:
    return [sys.executable, "-P", "-m", _MODULE, role, *map(str, arguments)]


def _environment(configuration: Path) -> dict[str, str]:
    """This process's environment with Slurm's place in it, and nothing of a job that it may belong to."""
    package = str(Path(__file__).parents[3])
    path = os.environ.get("PYTHONPATH", "")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return kept | {
        "SLURM_CONF": str(configuration),
        "PATH": _path(),
        "PYTHONPATH": os.pathsep.join([package, *([path] if path else [])]),
    }


def _path() -> str:
    """Where programs are looked for: Slurm's daemons stand where a plain user's PATH may not lead."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def _only_child(pid: int) -> int:
    """The process that `unshare` forks, as soon as it is there."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            found = children.read_text().split()
        except FileNotFoundError:
            break
        if found:
            return int(found[0])
        time.sleep(0.01)
    raise ClusterFailed("The namespaces could not be made.")


def _is_supervisor(pid: int, directory: Path) -> bool:
    """Whether `pid` is the supervisor of this very cluster, and not a later process of the same number."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z" and b"supervise" in command and os.fsencode(directory) in command


def _number_in(path: Path) -> int:
    """The number that a file holds; 0 if there is none yet."""
    try:
        return int(path.read_text() or 0)
    except FileNotFoundError:
        return 0


def _read_shape(directory: Path) -> Shape:
    return Shape(**json.loads((directory / "shape").read_text()))


def _user_name() -> str:
    """Slurm wants the name that belongs to the user id, whatever $USER says."""
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _tail(path: Path) -> str:
    try:
        lines = path.read_text().strip().splitlines()
    except FileNotFoundError:
        return ""
    return " / ".join(lines[-3:])


if __name__ == "__main__":
    _role, _directory, *_more = sys.argv[1:]
    match _role:
        case "supervise":
            supervise(Path(_directory), int(_more[0]))
        case "head":
            head(Path(_directory))
        case "boot":
            boot(Path(_directory), _more[0])
        case "node":
            node(Path(_directory), _more[0])
