"""What runs in a cluster's processes: the supervisor, the head node, and the compute nodes.

Each is started by `python -m` this module, with its role. See `course_lib.slurm.virtual.lifecycle`.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from course_lib.home import course_home
from course_lib.slurm.virtual import sandbox
from course_lib.slurm.virtual.configuration import (
    HEAD,
    HEAD_ADDRESS,
    LIBRARY,
    NETWORK,
    ClusterFailed,
    ClusterFolder,
)

_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
_LOOK_SECONDS = 0.05

_NAMESPACES = ("--mount", "--uts", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")


def command(role: str, *arguments: object) -> list[str]:
    """The command that plays a role of this module."""
    return [sys.executable, "-P", "-m", "course_lib.slurm.virtual.namespaces", role, *map(str, arguments)]


# --- The supervisor, outside of every namespace


def supervise(directory: Path, owner: int) -> None:
    """Start the head, and end it when the owner ends, when told to, or when it has ended itself."""
    files = ClusterFolder(directory)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    files.supervisor.write_text(str(os.getpid()))
    owners_end = os.pidfd_open(owner)
    user = [] if os.getuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
    # If this process is killed, so is `unshare`, and by --kill-child the head with all that is in it.
    head = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "unshare", *user, *_NAMESPACES, *command("head", directory)]
    )
    try:
        init = _only_child(head.pid)
        files.init.write_text(str(init))
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
    shape = ClusterFolder(directory).shape
    _call("mount", "--bind", directory / "hosts", "/etc/hosts")
    for device in (directory / "gpu").iterdir():
        # Slurm takes nothing but a device for a GPU.
        _call("mount", "--bind", "/dev/null", device)
    _call("ip", "link", "add", "br0", "type", "bridge")
    _wire(HEAD, HEAD_ADDRESS, "br0")
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
    ClusterFolder(directory).ready.touch()
    _reap_for_ever()


def boot(directory: Path, name: str) -> None:
    """Start a node; runs on the head."""
    log = ClusterFolder(directory).log.open("a")
    node = subprocess.Popen(
        ["unshare", *_NAMESPACES, *command("node", directory, name)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    init = _only_child(node.pid)
    ClusterFolder(directory).node(name).write_text(str(init))
    cable = f"to-{name}"
    # The other end of a crashed node's cable may not have gone yet.
    subprocess.run(["ip", "link", "del", cable], stderr=subprocess.DEVNULL, check=False)
    _call("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", init)
    _call("ip", "link", "set", cable, "master", "br0", "up")


# --- A compute node, process 1 of its namespace


def node(directory: Path, name: str) -> None:
    """Be a compute node."""
    # A job may need what the user's processes here use, wherever that is: the library and the results.
    _own_memory_file_systems([directory, Path.cwd(), Path(sys.prefix), LIBRARY, course_home()])
    while subprocess.run(["ip", "link", "show", "eth0"], capture_output=True, check=False).returncode:
        time.sleep(_LOOK_SECONDS)
    _wire(name, f"{NETWORK}.{name.removeprefix('node')}", "eth0")
    _daemon(directory, "slurmd", "-N", name)
    _reap_for_ever()


def _daemon(directory: Path, *words: str) -> None:
    """Start one of Slurm's daemons. In a sandbox it stays in the foreground, or the sandbox would end."""
    if ClusterFolder(directory).shape.sandboxed:
        subprocess.Popen(sandbox.in_sandbox(directory, [*words, "-D"]), stdin=subprocess.DEVNULL)
    else:
        _call(*words)


def _memory_for_jobs(directory: Path) -> None:
    """Put the shared folder into memory, where it is bounded, for the user in the sandbox alone."""
    user = (directory / "passwd").read_text().split(":")[2]
    options = f"size={sandbox.ROOM},mode=0755,uid={user},gid={user}"
    _call("mount", "-t", "tmpfs", "-o", options, "shared", directory / "shared")


def _own_memory_file_systems(kept: Sequence[Path]) -> None:
    """Put fresh file systems on /tmp and /dev/shm, and of the old ones only the folders `kept` into them.

    The folder for temporary files is the node's own too, wherever TMPDIR says that it is.
    """
    named = Path(tempfile.gettempdir()).resolve()
    fresh = [Path("/tmp").resolve()]
    fresh += [] if named.is_relative_to(fresh[0]) else [named]
    inside = {path.resolve() for path in kept if any(path.resolve().is_relative_to(top) for top in fresh)}
    held = {path: os.open(path, os.O_PATH) for path in inside - set(fresh)}
    for place in (*fresh, Path("/dev/shm")):
        _call("mount", "-t", "tmpfs", "-o", "mode=1777", "tmp", place)
    named.mkdir(mode=0o1777, parents=True, exist_ok=True)
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
