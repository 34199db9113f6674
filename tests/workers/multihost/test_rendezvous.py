from __future__ import annotations

import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.settings.pools import HostsSettings
from tests.workers.multihost.connection_pair import SILENCE_S
from tests.workers.multihost.processes import reserved_port
from tests.workers.polling import DEADLINE_S
from workers.engine.array_framing import Message
from workers.multihost.connection import Connection
from workers.multihost.rendezvous import accept_followers, call, leader_address, listening

TOKEN = "the right one"


def test_unknown_peers_are_rejected_and_processes_ordered() -> None:
    with listening(0) as server, ThreadPoolExecutor(1) as leader:
        address = ("127.0.0.1", server.getsockname()[1])
        meeting = leader.submit(accept_followers, server, 2, TOKEN, SILENCE_S)
        wrong = call(address, "a guess", 1, SILENCE_S)
        with socket.create_connection(address) as noise:
            noise.sendall(b"GET / HTTP/1.1\r\n\r\n")
        second, first = (call(address, TOKEN, index, SILENCE_S) for index in (2, 1))
        lines = meeting.result()
    assert [line.peer for line in lines] == ["process 1", "process 2"]
    for line, follower in zip(lines, (first, second), strict=True):
        line.send(Message("hello", {"to": line.peer}))
        assert follower.receive().fields == {"to": line.peer}
    with pytest.raises(ConnectionError):
        wrong.receive()
    close(wrong, first, second, *lines)


def close(*lines: Connection) -> None:
    for line in lines:
        line.close()


ALONE = """
import logging, sys
from service.settings.pools import HostsSettings
from workers.multihost.rendezvous import join
logging.basicConfig(level=logging.INFO)
join(HostsSettings(count=2, coordinator=sys.argv[1], index=int(sys.argv[2])), arrive_s=1)
"""


@pytest.mark.parametrize("index", [0, 1])
def test_missing_peers_are_reported(index: int) -> None:
    """JAX itself would abort the process with the guess that another has died."""
    with reserved_port() as port:
        address = f"127.0.0.1:{port}"
        command = [sys.executable, "-c", ALONE, address, str(index)]
        left = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert left.returncode == 1, left.stderr
    message = (
        f"not all 2 processes of the slice have joined this one, process {index}, at {address}"
    )
    assert message in left.stderr


@pytest.mark.parametrize(
    ("coordinator", "address"),
    [("leader.pods:8476", "leader.pods"), ("10.0.0.7:1", "10.0.0.7"), ("[fd00::1]:1", "fd00::1")],
)
def test_leader_address_is_the_coordinators_host(coordinator: str, address: str) -> None:
    assert leader_address(HostsSettings(count=2, coordinator=coordinator, index=1)) == address
