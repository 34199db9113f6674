"""Session of one process in its slice, from JAX's joining to the common end."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import jax

from models.checkpoint.folder import CheckpointError
from service.settings.mesh import HostsSettings
from service.settings.section import ConfigError
from workers.multihost.exits import leave
from workers.multihost.failure_reason import reason
from workers.multihost.followers import Followers
from workers.multihost.handshake import difference
from workers.multihost.leader_link import LeaderLink
from workers.multihost.rendezvous import join, meet

log = logging.getLogger(__name__)


def agree(company: Followers | LeaderLink, settings: Mapping[str, Any]) -> None:
    """Compare what this process was given with what the first one was, before anything is loaded.

    Processes that load differently may wait for each other for ever.

    Args:
        settings: as JSON.

    Raises: ConfigError: they differ, and in what.
    """
    if isinstance(company, Followers):
        company.tell("settings", {"settings": settings})
    if isinstance(company, LeaderLink):
        wrong = difference(settings, company.first("settings").fields["settings"])
        if wrong:
            raise ConfigError(wrong)


@contextmanager
def join_slice(hosts: HostsSettings, silence_s: float) -> Iterator[Followers | LeaderLink | None]:
    """Yield what this process is in its slice.

    The first, with followers; or a follower, with its link to the first; None: alone. Enter it
    before anything uses JAX, in the main thread.

    An error inside ends this process, and so all of them: JAX would wait for those that have not
    failed.

    Args:
        silence_s: after which a process that says nothing counts as gone.
    """
    if hosts.count == 1:
        yield None
        return
    company: Followers | LeaderLink | None = None
    try:
        join(hosts)
        lines = meet(hosts, silence_s)
        is_first = jax.process_index() == 0
        log.info("process %d of %d", jax.process_index(), hosts.count)
        company = Followers(lines, silence_s) if is_first else LeaderLink(lines[0], silence_s)
        yield company
        company.close()
        jax.distributed.shutdown()
    except (CheckpointError, ConfigError) as error:
        _fail(company, os.EX_CONFIG, error)
    except Exception as error:
        log.exception("this process of the slice failed")
        _fail(company, 1, error)


def _fail(company: Followers | LeaderLink | None, code: int, error: Exception) -> NoReturn:
    if isinstance(company, Followers):
        company.on_loss(lambda loss: leave(code, loss))
    if company is not None:
        company.fail(error)
    leave(code, reason(error))
