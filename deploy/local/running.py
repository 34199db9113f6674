"""`atelier up` as a child process, for commands that need a whole system for a while."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import IO

from deploy.exit_codes import say
from deploy.local.environment import settings_environment
from deploy.local.processes import ATELIER, dies_with_parent, importing_atelier
from service.settings.section import ConfigError
from service.settings.settings import CONFIG_VARIABLE, Settings

READY = re.compile(r"^(\S+) is ready at (\S+)")
ALL = "Atelier"
"""Name of the system, which is ready when all models are."""


@contextmanager
def running(settings: Settings, empty: Path) -> Iterator[str]:
    """Run a system with these settings alone; yield its URL once all models are ready.

    Its output goes to standard error.

    Args:
        empty: file to create, which replaces the settings file.

    Raises: ConfigError: the system ended first.
    """
    empty.touch()
    environment = settings_environment(settings, {**os.environ, CONFIG_VARIABLE: str(empty)})
    url: Future[str] = Future()
    with subprocess.Popen(
        [*ATELIER, "up"],
        env=importing_atelier(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=dies_with_parent(signal.SIGTERM),
    ) as system:
        assert system.stdout is not None
        reader = Thread(target=_read, args=(system.stdout, url))
        reader.start()
        try:
            yield url.result()
        finally:
            system.terminate()
            reader.join()


def _read(output: IO[str], url: Future[str]) -> None:
    """Relay a system's output to its end; set its URL, or an error if it never became ready."""
    for line in output:
        say(line.rstrip())
        match = READY.search(line)
        if match and match[1] == ALL and not url.done():
            url.set_result(match[2])
    if not url.done():
        url.set_exception(ConfigError("the system did not start; see above"))
