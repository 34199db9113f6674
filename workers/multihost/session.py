"""Session of one process in its slice, from JAX's rendezvous to the joint exit."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import jax

from models.checkpoint.folder import CheckpointError
from service.settings.pools import HostsSettings
from service.settings.section import ConfigError
from workers.multihost.exits import exit_now, reason
from workers.multihost.followers import Followers
from workers.multihost.handshake import difference
from workers.multihost.leader_link import LeaderLink
from workers.multihost.rendezvous import connect_all, join

log = logging.getLogger(__name__)


def agree(role: Followers | LeaderLink, settings: Mapping[str, Any]) -> None:
    """Compare this process's settings with the leader's before loading anything.

    Processes that load differently may deadlock.

    Args:
        settings: settings as JSON.

    Raises: ConfigError: they differ; names the differences.
    """
    if isinstance(role, Followers):
        role.send("settings", {"settings": settings})
    if isinstance(role, LeaderLink):
        wrong = difference(settings, role.first("settings").fields["settings"])
        if wrong:
            raise ConfigError(wrong)


@contextmanager
def join_slice(hosts: HostsSettings, silence_s: float) -> Iterator[Followers | LeaderLink | None]:
    """Yield this process's role in its slice: `Followers`, `LeaderLink`, or None if it is alone.

    Enter it in the main thread, before anything uses JAX.
    An error inside exits this process and so all others, because JAX would wait for processes
    without an error.

    Args:
        silence_s: timeout after which a silent process counts as lost.
    """
    if hosts.count == 1:
        yield None
        return
    role: Followers | LeaderLink | None = None
    try:
        join(hosts)
        lines = connect_all(hosts, silence_s)
        is_first = jax.process_index() == 0
        log.info("process %d of %d", jax.process_index(), hosts.count)
        role = Followers(lines, silence_s) if is_first else LeaderLink(lines[0], silence_s)
        yield role
        role.close()
        jax.distributed.shutdown()
    except (CheckpointError, ConfigError) as error:
        _fail(role, os.EX_CONFIG, error)
    except Exception as error:
        log.exception("this process of the slice failed")
        _fail(role, 1, error)


def _fail(role: Followers | LeaderLink | None, code: int, error: Exception) -> NoReturn:
    if isinstance(role, Followers):
        role.on_loss(lambda loss: exit_now(code, loss))
    if role is not None:
        role.fail(error)
    exit_now(code, reason(error))
