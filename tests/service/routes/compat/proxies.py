"""nginx and HAProxy in front of a server, with short timeouts."""

from __future__ import annotations

import asyncio
import os
import shutil
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from service.jobs.redis.tasks import cancel

PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"
"""Folders of programs, also of those that Debian gives to the administrator only."""
TICK_S = 0.01
PATIENT_S = 300
"""Timeouts of a proxy that are not under test."""

NGINX = """
{user}
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen unix:{socket};
    location / {{
      proxy_pass {address};
      proxy_read_timeout {timeout_s}s;
    }}
  }}
}}
"""
HAPROXY = """
defaults
  mode http
  timeout connect {patient_s}s
  timeout client {patient_s}s
  timeout server {timeout_s}s
frontend clients
  bind unix@{socket}
  default_backend servers
backend servers
  server server {host}
"""


@dataclass(frozen=True)
class Proxy:
    """A proxy program, its configuration, and how it is run in the foreground."""

    program: str
    configuration: str
    arguments: Callable[[Path], list[str]]

    @property
    def executable(self) -> str | None:
        """Path of the program; None if it is not installed."""
        return shutil.which(self.program, path=PATH)


PROXIES = {
    "nginx": Proxy("nginx", NGINX, lambda file: ["-e", "stderr", "-c", str(file)]),
    "haproxy": Proxy("haproxy", HAPROXY, lambda file: ["-db", "-f", str(file)]),
}


class Pauses:
    """Context manager that measures how long the event loop, and with it the server, paused."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def __aenter__(self) -> Pauses:
        self._task = asyncio.create_task(self._measure())
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel(self._task)

    async def _measure(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            await asyncio.sleep(TICK_S)
            self.longest_s = max(self.longest_s, clock() - began)


@asynccontextmanager
async def behind(
    proxy: Proxy, address: str, timeout_s: float, folder: Path
) -> AsyncIterator[httpx.AsyncHTTPTransport]:
    """Run the proxy in front of `address`; yield a transport through its socket.

    Args:
        timeout_s: time after which it ends a request whose server sends nothing.
    """
    socket, file = folder / "proxy.sock", folder / "proxy.conf"
    user = "user root;" if os.geteuid() == 0 else ""  # its child may read the folder
    file.write_text(
        proxy.configuration.format(
            user=user,
            folder=folder,
            socket=socket,
            address=address,
            host=address.removeprefix("http://"),
            timeout_s=timeout_s,
            patient_s=PATIENT_S,
        )
    )
    assert proxy.executable
    with (folder / "proxy.log").open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            proxy.executable, *proxy.arguments(file), stdout=out, stderr=out
        )
    try:
        await _accepts(socket, process, folder)
        async with httpx.AsyncHTTPTransport(uds=str(socket)) as transport:
            yield transport
    finally:
        process.terminate()
        await process.wait()


async def _accepts(socket: Path, process: Process, folder: Path) -> None:
    """Wait until the proxy accepts connections."""
    while True:
        assert process.returncode is None, (folder / "proxy.log").read_text()
        try:
            _, writer = await asyncio.open_unix_connection(socket)
        except OSError:
            await asyncio.sleep(0.01)
            continue
        writer.close()
        return await writer.wait_closed()
