"""A real Slurm of several nodes on one Linux machine, for trying scripts at home, for tests and graders.

Every node has namespaces of its own (host name, network, processes, mounts), so it has its own address and
its own loopback: `MASTER_ADDR=localhost` on two nodes fails here as it does on a real cluster. Nodes share
all file systems but /tmp and /dev/shm, as real nodes do. Root is not needed where the kernel lets users make
namespaces; Slurm itself must be installed (on Debian: slurmctld slurmd slurm-client).

Processes, outermost first: a supervisor (outside of every namespace), the head node (process 1
of its namespace, with slurmctld), and in it the compute nodes (process 1 of a namespace each, with slurmd).
Ending the head's process 1 ends them all, whatever a job has started; the kernel does that. The supervisor
does so when it is told to stop, or when the process that the cluster belongs to has ended.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.slurm.virtual import namespaces, sandbox
from course_lib.slurm.virtual.configuration import (
    ClusterFailed,
    ClusterFolder,
    Shape,
    environment_for,
    missing_programs,
    number_in,
)

__all__ = [
    "ClusterFailed",
    "Shape",
    "VirtualCluster",
    "default_directory",
    "missing_programs",
    "temporary_cluster",
]

_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
_LOOK_SECONDS = 0.05

_HELP = (
    "It needs Linux that lets you make namespaces: root, or kernel.unprivileged_userns_clone=1 "
    "and user.max_user_namespaces above 0; in a container, one that is started with --privileged"
)


def default_directory() -> Path:
    """Where this user's cluster keeps its state."""
    return Path(tempfile.gettempdir()) / f"course-cluster-{os.getuid()}"


@dataclass(frozen=True, slots=True)
class VirtualCluster:
    """One cluster, known by its directory, which only its user can read and which is gone when it stops."""

    directory: Path

    @property
    def files(self) -> ClusterFolder:
        return ClusterFolder(self.directory)

    @property
    def configuration(self) -> Path:
        """Slurm's configuration file."""
        return self.files.configuration

    @property
    def shared(self) -> Path:
        """A folder that all nodes see, gone when the cluster stops."""
        return self.files.shared

    @property
    def running(self) -> bool:
        return self.files.ready.exists() and _is_supervisor(number_in(self.files.supervisor), self.directory)

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
        self.files.prepare(shape)
        with self.files.log.open("w") as log:
            supervisor = subprocess.Popen(
                namespaces.command("supervise", self.directory, owner),
                env=environment_for(self.configuration),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self.files.ready.exists():
            ended = supervisor.poll() is not None
            if ended or time.monotonic() > deadline:
                said = _tail(self.files.log) or "nothing was said"
                self.stop()
                raise ClusterFailed(f"The virtual cluster did not start: {said}. {_HELP}")
            time.sleep(_LOOK_SECONDS)

    def stop(self) -> None:
        """End every process of it and remove its directory. Nothing happens if there is none."""
        supervisor = number_in(self.files.supervisor)
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
        entered = ["nsenter", "--target", str(number_in(self.files.init))]
        if os.getuid() != 0:
            entered += ["--user", "--preserve-credentials"]
        entered += ["--mount", "--uts", "--net", "--pid", f"--wdns={Path.cwd()}"]
        if self.files.shape.sandboxed:
            words = sandbox.in_sandbox(self.directory, words)
        return [*entered, "--", *map(str, words)]

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for commands on the head node: this process's, and where Slurm is."""
        return environment_for(self.configuration)

    def run(self, words: Sequence[object], **options: Any) -> "subprocess.CompletedProcess[str]":
        """Run a command on the head node, as `subprocess.run` does."""
        settings: dict[str, Any] = {"env": self.environment, "text": True, "check": False} | options
        return subprocess.run(self.command(words), **settings)

    def crash(self, node: str) -> None:
        """End everything on a node at once, as a loss of power does. Slurm notices within half a minute."""
        init = self._node_init(node)
        self.run(["kill", "-9", init], check=True)
        self.files.node(node).unlink()

    def boot(self, node: str) -> None:
        """Start a node that has crashed. Do so once Slurm has noticed the crash: `sinfo` says "down"."""
        if self.files.node(node).exists():
            raise ClusterFailed(f"{node} is running.")
        self.run(namespaces.command("boot", self.directory, node), check=True)

    def _node_init(self, node: str) -> int:
        """The process id, on the head, of a node's process 1."""
        path = self.files.node(node)
        if not path.exists():
            names = ", ".join(self.files.shape.names)
            raise ClusterFailed(f"No node {node} is running. The nodes are {names}.")
        return number_in(path)


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


def _is_supervisor(pid: int, directory: Path) -> bool:
    """Whether `pid` is the supervisor of this very cluster, and not a later process of the same number."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z" and b"supervise" in command and os.fsencode(directory) in command


def _tail(path: Path) -> str:
    try:
        lines = path.read_text().strip().splitlines()
    except FileNotFoundError:
        return ""
    return " / ".join(lines[-3:])
