"""Rendezvous of one slice's processes: first through JAX, then over separate connections.

Only processes that JAX has joined receive the leader's address, and the secret for connecting.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import socket
import time

import jax
import numpy as np

from models.parallel import jax_internals
from service.settings.pools import HostsSettings
from service.settings.section import ConfigError
from workers.engine.array_framing import Message
from workers.multihost.connection import Connection, ConnectionLost
from workers.multihost.exits import exit_after

ARRIVE_S = 900
"""Time for all processes to start; another host may still be pulling its container image."""
SPARE_S = 60
"""Extra time for JAX, which aborts the process at its own deadline with a less helpful message."""
INVITATION_BYTES = 1024
CONNECT_S = 120.0
"""Time from JAX's rendezvous to the last connection. All processes run; nothing is loaded yet."""
HELLO = 1 / 3
"""Share of the silence timeout in which a caller must identify itself. Other callers wait
meanwhile."""
SHUTDOWN_S = 30
"""Time that an exiting process waits for the others to exit."""

log = logging.getLogger(__name__)


def join(hosts: HostsSettings, arrive_s: int = ARRIVE_S) -> None:
    """Join the processes' devices through JAX, or exit if some are missing after `arrive_s`.

    Call it before anything uses JAX.

    Raises: ConfigError: their number differs from the settings.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would handle SIGTERM
    # On a TPU pod the coordinator, count and index may be unset; JAX finds them.
    with exit_after(arrive_s, missing_processes_message(hosts, arrive_s)):
        jax.distributed.initialize(
            hosts.coordinator,
            hosts.count if hosts.coordinator else None,
            hosts.index,
            initialization_timeout=arrive_s + SPARE_S,
            shutdown_timeout_seconds=SHUTDOWN_S,
        )
    if jax.process_count() != hosts.count:
        process_count = jax.process_count()
        raise ConfigError(
            f"hosts.count: expected {hosts.count} processes, and {process_count} joined"
        )


def missing_processes_message(hosts: HostsSettings, seconds: float) -> str:
    """Return the error message if processes are missing, for process `hosts.index`."""
    this = "this one" if hosts.index is None else f"this one, process {hosts.index},"
    where = hosts.coordinator or "the coordinator"
    return (
        f"after {seconds:.0f} s not all {hosts.count} processes of the slice have joined {this} at "
        f"{where}: start every one of them with the same coordinator and count and an index of its "
        f"own, and check that it reaches {where}"
    )


def connect_all(hosts: HostsSettings, silence_s: float) -> list[Connection]:
    """Return the leader's connections to all others, or a follower's connection to the leader.

    Raises: ConnectionLost: a process is missing.
    """
    if jax.process_index() == 0:
        return _invite(hosts, silence_s)
    return [_accept_invitation(silence_s)]


def _invite(hosts: HostsSettings, silence_s: float) -> list[Connection]:
    token = secrets.token_hex(16)
    with listening(hosts.port) as server:
        port = server.getsockname()[1]
        _broadcast({"address": leader_address(hosts), "port": port, "token": token})
        return accept_followers(server, hosts.count - 1, token, silence_s)


def listening(port: int) -> socket.socket:
    """Return a socket that listens on every address of this host."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def accept_followers(
    server: socket.socket, count: int, token: str, silence_s: float
) -> list[Connection]:
    """Accept `count` callers with the right token, each with a different index.

    Raises: ConnectionLost: some did not connect in time.
    """
    until = time.monotonic() + CONNECT_S
    lines: dict[int, Connection] = {}
    while len(lines) < count:
        server.settimeout(max(until - time.monotonic(), 0.001))
        try:
            connection, address = server.accept()
        except TimeoutError:
            raise ConnectionLost(f"{len(lines)} of {count} other processes connected") from None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        caller = Connection(connection, f"the process at {address[0]}", silence_s * HELLO)
        index = _index(caller, token)
        if index is None:
            caller.close()
        else:
            lines[index] = Connection(connection, f"process {index}", silence_s)
    return [lines[index] for index in sorted(lines)]


def _index(line: Connection, token: str) -> int | None:
    """Return the index of the calling process in the slice; None: it is not part of the slice."""
    try:
        hello = line.receive()
    except ConnectionLost as error:
        log.warning("a connection from outside the slice: %s", error)
        return None
    if not hmac.compare_digest(str(hello.fields.get("token")).encode(), token.encode()):
        log.warning("%s does not have this slice's secret", line.peer)
        return None
    return int(hello.fields["index"])


def _accept_invitation(silence_s: float) -> Connection:
    invitation = _broadcast({})
    address = (invitation["address"], int(invitation["port"]))
    return call(address, invitation["token"], jax.process_index(), silence_s)


def call(address: tuple[str, int], token: str, index: int, silence_s: float) -> Connection:
    """Connect process `index` to the leader. Raises: ConnectionLost: no answer."""
    try:
        connection = socket.create_connection(address, CONNECT_S)
    except OSError as error:
        raise ConnectionLost(f"the first process does not answer at {address}: {error}") from error
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line = Connection(connection, "the first process", silence_s)
    line.send(Message("hello", {"token": token, "index": index}))
    return line


def leader_address(hosts: HostsSettings) -> str:
    """Return the address at which other hosts reach this one: that of JAX's coordinator."""
    if hosts.coordinator is not None:
        return hosts.coordinator.rpartition(":")[0].strip("[]")
    return socket.gethostbyname(socket.gethostname())


def _broadcast(invitation: dict[str, object]) -> dict[str, str]:
    """Return the leader's invitation (address and token) in all processes."""
    data = json.dumps(invitation).encode()
    padded = np.frombuffer(data.ljust(INVITATION_BYTES), np.uint8)
    everywhere = jax_internals.broadcast_one_to_all(padded)
    return dict(json.loads(np.asarray(everywhere, np.uint8).tobytes()))
