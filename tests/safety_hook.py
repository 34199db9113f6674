"""Misbehaving safety hook as a process: `python -m tests.safety_hook PORT`.

The prompt selects its behavior: "refuse …", "slow …" (never answers), "garbage …", "error …", and
"flaky …" (an error the first time). A stage may follow, as in "refuse after". GET returns the
questions so far.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import ProxyHandler, build_opener

questions: list[dict[str, Any]] = []
never = threading.Event()


class Hook(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        question["authorization"] = self.headers["Authorization"]
        questions.append(question)
        kind, when, *_ = [*question["request"]["prompt"].split(), "", ""]
        if when not in ("", question["when"]):
            kind = "allow"
        if kind == "slow":
            never.wait()
        is_first = sum(earlier["request"] == question["request"] for earlier in questions) == 1
        status = 500 if kind == "error" or (kind == "flaky" and is_first) else 200
        self.answer(status, b"<html>" if kind == "garbage" else verdict(kind))

    def do_GET(self) -> None:
        self.answer(200, json.dumps(questions).encode())

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


def verdict(kind: str) -> bytes:
    refused = {"allow": False, "reason": "it shows\na secret"}
    return json.dumps(refused if kind == "refuse" else {"allow": True}).encode()


class HookProcess:
    """The hook's process and its address."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}/check"

    def questions(self) -> list[dict[str, Any]]:
        with build_opener(ProxyHandler({})).open(self.url) as response:
            questions: list[dict[str, Any]] = json.load(response)
        return questions

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def hook_process(port: int = 0) -> Iterator[HookProcess]:
    command = [sys.executable, "-m", "tests.safety_hook", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout
        try:
            yield HookProcess(process, int(process.stdout.readline()))
        finally:
            process.kill()


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Hook)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
