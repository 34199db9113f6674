"""Rendezvous of one slice's processes: through JAX first, then by connections of our own.

Only those that JAX has joined learn where the leader listens, and the secret that opens a line.
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
from service.settings.mesh import HostsSettings
from service.settings.section import ConfigError
from workers.engine.array_framing import Message
from workers.multihost.connection import Connection, ConnectionLost
from workers.multihost.exits import leaving_after

ARRIVE_S = 900
"""Time for all processes to come: another host may be fetching its image still."""
SPARE_S = 60
"""Extra time for JAX: at its own deadline it aborts the process, with another sentence."""
INVITATION_BYTES = 1024
MEET_S = 120.0
"""Time from JAX's joining to the last connection: all processes are there, nothing is loaded."""
HELLO = 1 / 3
"""Share of the silence that counts as a loss: time for a caller to say who it is. The others, who
are not spoken to meanwhile, wait for that long."""
SHUTDOWN_S = 30
"""Time that a leaving process waits for the others to leave too."""

log = logging.getLogger(__name__)


def join(hosts: HostsSettings, arrive_s: int = ARRIVE_S) -> None:
    """Make the processes' devices one set, or leave where some have not come in time.

    Before anything uses JAX.

    Raises: ConfigError: they are not as many as the settings say.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM for itself
    # On a TPU pod, where none of these is given, they know each other.
    with leaving_after(arrive_s, not_all_came(hosts, arrive_s)):
        jax.distributed.initialize(
            hosts.coordinator,
            hosts.count if hosts.coordinator else None,
            hosts.index,
            initialization_timeout=arrive_s + SPARE_S,
            shutdown_timeout_seconds=SHUTDOWN_S,
        )
    if jax.process_count() != hosts.count:
        found = jax.process_count()
        raise ConfigError(f"hosts.count: {hosts.count} processes were to come, not {found}")


def not_all_came(hosts: HostsSettings, seconds: float) -> str:
    """Explain that process `hosts.index` has waited for so long in vain."""
    own = "this one" if hosts.index is None else f"this one, process {hosts.index},"
    where = hosts.coordinator or "the coordinator"
    return (
        f"after {seconds:.0f} s not all {hosts.count} processes of the slice have met {own} at "
        f"{where}: start every one of them with the same coordinator and count and an index of its "
        f"own, and see that it reaches {where}"
    )


def meet(hosts: HostsSettings, silence_s: float) -> list[Connection]:
    """The first process's lines to all others; any other's line to the first.

    Raises: ConnectionLost: somebody did not come.
    """
    if jax.process_index() == 0:
        return _invite(hosts, silence_s)
    return [_accept_invitation(silence_s)]


def _invite(hosts: HostsSettings, silence_s: float) -> list[Connection]:
    token = secrets.token_hex(16)
    with listening(hosts.port) as server:
        port = server.getsockname()[1]
        _broadcast({"address": own_address(hosts), "port": port, "token": token})
        return gathered(server, hosts.count - 1, token, silence_s)


def listening(port: int) -> socket.socket:
    """Listen on every address of this host."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def gathered(server: socket.socket, count: int, token: str, silence_s: float) -> list[Connection]:
    """Accept the first `count` callers that know the token, each with an index of its own.

    Raises: ConnectionLost: they did not come in time.
    """
    until = time.monotonic() + MEET_S
    lines: dict[int, Connection] = {}
    while len(lines) < count:
        server.settimeout(max(until - time.monotonic(), 0.001))
        try:
            connection, address = server.accept()
        except TimeoutError:
            raise ConnectionLost(f"{len(lines)} of {count} other processes came") from None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        caller = Connection(connection, f"the process at {address[0]}", silence_s * HELLO)
        index = _index(caller, token)
        if index is None:
            caller.close()
        else:
            lines[index] = Connection(connection, f"process {index}", silence_s)
    return [lines[index] for index in sorted(lines)]


def _index(line: Connection, token: str) -> int | None:
    """Return the index of the calling process; None: it is none of ours."""
    try:
        hello = line.receive()
    except ConnectionLost as error:
        log.warning("a call that was none: %s", error)
        return None
    if not hmac.compare_digest(str(hello.fields.get("token")).encode(), token.encode()):
        log.warning("%s does not know this slice's secret", line.peer)
        return None
    return int(hello.fields["index"])


def _accept_invitation(silence_s: float) -> Connection:
    invitation = _broadcast({})
    address = (invitation["address"], int(invitation["port"]))
    return call(address, invitation["token"], jax.process_index(), silence_s)


def call(address: tuple[str, int], token: str, index: int, silence_s: float) -> Connection:
    """The line of process `index` to the first one. Raises: ConnectionLost: it does not answer."""
    try:
        connection = socket.create_connection(address, MEET_S)
    except OSError as error:
        raise ConnectionLost(f"the first process does not answer at {address}: {error}") from error
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line = Connection(connection, "the first process", silence_s)
    line.send(Message("hello", {"token": token, "index": index}))
    return line


def own_address(hosts: HostsSettings) -> str:
    """Return the address by which other hosts reach this one: that of JAX's coordinator."""
    if hosts.coordinator is not None:
        return hosts.coordinator.rpartition(":")[0].strip("[]")
    return socket.gethostbyname(socket.gethostname())


def _broadcast(invitation: dict[str, object]) -> dict[str, str]:
    """The first process's, in all of them."""
    data = json.dumps(invitation).encode()
    padded = np.frombuffer(data.ljust(INVITATION_BYTES), np.uint8)
    everywhere = jax_internals.broadcast_one_to_all(padded)
    return dict(json.loads(np.asarray(everywhere, np.uint8).tobytes()))
