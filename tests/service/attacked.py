"""A real server process under attack: how it answers, how long `/healthz` takes, what it holds."""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

START_S = TIMEOUT_S = 60.0
HEALTHY_S = 0.5
"""Limit of the server's processor time until /healthz has answered, beside any attack."""
CALLBACK_S = 0.1
"""Limit of the event loop's own: no callback takes longer."""
PAUSE_S = 0.02
ERRORS = "errors.txt"
"""What the server logs, in its state folder."""


class Attacked:
    """`atelier serve` in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.folder = folder

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S)

    def send(self, data: bytes, *, until_closed: bool = False) -> bytes:
        """What comes back for these bytes: one answer, or all until the server closes."""
        with self.connect() as client:
            with contextlib.suppress(ConnectionError):
                client.sendall(data)
            return received(client, until_closed)

    def memory(self) -> int:
        """Resident bytes now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def logs(self, text: str) -> bool:
        """Whether its log has that text, now or soon."""
        deadline = time.monotonic() + START_S
        while (
            is_missing := text not in (self.folder / ERRORS).read_text()
        ) and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
        return not is_missing

    def cpu_s(self) -> float:
        """Processor time that all its threads have taken: the clock of clock_getcpuclockid(3)."""
        return time.clock_gettime(~self.process.pid << 3 | 2)

    def loop_s(self) -> float:
        """Processor time of its event loop, which runs in the first thread."""
        first = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/schedstat")
        return int(first.read_text().split()[0]) / 1e9

    def health_cpu_s(self) -> tuple[float, float]:
        """Processor time until /healthz has answered on a new connection: the server's, the loop's.

        A callback that blocks the event loop takes both, a thread that holds the interpreter's
        lock the first; other programs of this machine take neither.
        """
        began, loop_began = self.cpu_s(), self.loop_s()
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            client.request("GET", "/healthz")
            assert client.getresponse().status == 200
        finally:
            client.close()
        return self.cpu_s() - began, self.loop_s() - loop_began

    def stays_well(self, attack: Callable[[], object], grows: int) -> None:
        """Hold the server to its bounds while an attack runs.

        Args:
            grows: bytes by which its memory may grow at any moment.
        """
        before = self.memory()
        with Watch(self) as watch:
            attack()
        assert watch.memory - before < grows, f"grew by {watch.memory - before} bytes"
        assert watch.most_cpu_s < HEALTHY_S, f"/healthz took {watch.most_cpu_s} s of a processor"
        assert watch.most_loop_s < CALLBACK_S, f"the loop was held up by {watch.most_loop_s} s"


class Watch:
    """Asks for /healthz, and reads the memory, as long as it is entered."""

    def __init__(self, server: Attacked) -> None:
        self._server = server
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._error: BaseException | None = None
        self.most_cpu_s = self.most_loop_s = 0.0
        self.memory = server.memory()

    def _look(self) -> None:
        try:
            while True:
                cpu_s, loop_s = self._server.health_cpu_s()
                self.most_cpu_s = max(self.most_cpu_s, cpu_s)
                self.most_loop_s = max(self.most_loop_s, loop_s)
                self.memory = max(self.memory, self._server.memory())
                if self._done.wait(PAUSE_S):
                    return
        except BaseException as error:
            self._error = error

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        if self._error:
            raise self._error


def received(client: socket.socket, until_closed: bool = False) -> bytes:
    """An answer with its body, or whatever comes until the server closes."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while until_closed or not _is_whole(data):
            more = client.recv(65536)
            if not more:
                break
            data += more
    return data


def _is_whole(data: bytes) -> bool:
    head, found, body = data.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    return bool(found) and bool(lengths) and len(body) >= int(lengths[0].partition(b":")[2])


def status_of(answer: bytes) -> int:
    """The status of the first answer; 0 for none."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def is_closed(client: socket.socket, within_s: float = START_S) -> bool:
    """Whether the server closes that connection in time, whatever it says before."""
    deadline = time.monotonic() + within_s
    while (left := deadline - time.monotonic()) > 0:
        if select.select([client], [], [], left)[0]:
            try:
                if not client.recv(65536):
                    return True
            except ConnectionError:
                return True
    return False


@contextlib.contextmanager
def attacked(
    redis_url: str, folder: Path, *, descriptors: int | None = None, **variables: str
) -> Iterator[Attacked]:
    """A server of these settings; with a limit of file descriptors, if one is given."""
    environment = {name: v for name, v in os.environ.items() if not name.startswith("ATELIER_")}
    environment |= {"ATELIER_REDIS__URL": redis_url, "ATELIER_STATE_DIR": str(folder)} | variables
    limit = ("prlimit", f"--nofile={descriptors}") if descriptors else ()
    with (
        socket.create_server(("127.0.0.1", 0), backlog=1024) as listener,
        (folder / ERRORS).open("wb") as out,
    ):
        port, fd = listener.getsockname()[1], listener.fileno()
        command = (*limit, sys.executable, "-m", "atelier", "serve", "--fd", str(fd))
        process = subprocess.Popen(command, env=environment, pass_fds=[fd], stderr=out)
    server = Attacked(process, port, folder)
    try:
        server.health_cpu_s()  # the listener takes connections before the server does
        yield server
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
