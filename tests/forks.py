"""What is started for submissions, for tests that count it."""

import pytest

from graders.host import fork_server_client
from graders.isolation.usage import Bounds


def counted_forks(monkeypatch: pytest.MonkeyPatch) -> list[Bounds]:
    """An entry for every process that a worker starts from now on: the bounds that it has to keep."""
    started: list[Bounds] = []
    fork = fork_server_client.ForkServer.fork

    def counted(worker: fork_server_client.ForkServer, bounds: Bounds) -> fork_server_client.Process:
        started.append(bounds)
        return fork(worker, bounds)

    monkeypatch.setattr(fork_server_client.ForkServer, "fork", counted)
    return started
