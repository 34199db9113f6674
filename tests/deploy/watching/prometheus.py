"""Runs a real Prometheus with the project's configuration."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import yaml

from deploy.local.processes import dies_with_parent
from tests.deploy.watching.files import COMPOSE, CONFIG
from tests.deploy.watching.tools import program
from tests.e2e.system import DEADLINE_S, until
from tools.rules import RULES

EVERY = "1s"
"""Interval of scrapes and evaluations in tests."""
PATIENCE_S = 30.0
"""Time-out of a query on a busy machine."""


class Prometheus:
    """Client of Prometheus' HTTP API."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=url, timeout=PATIENCE_S, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def is_ready(self) -> bool:
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def query(self, expr: str, at: float | None = None) -> list[dict[str, Any]]:
        """Evaluate an expression now or at a time. Raises: AssertionError: invalid PromQL."""
        parameters = {"query": expr} if at is None else {"query": expr, "time": at}
        return list(self._ask("query", parameters)["result"])

    def span(self, expr: str, start: float, end: float, step_s: float) -> list[dict[str, Any]]:
        """Evaluate an expression over a range. Times are seconds since the epoch."""
        parameters = {"query": expr, "start": start, "end": end, "step": step_s}
        return list(self._ask("query_range", parameters)["result"])

    def _ask(self, endpoint: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        answer = self._http.post(f"/api/v1/{endpoint}", data=dict(parameters)).json()
        assert answer["status"] == "success", f"{parameters['query']}\n{answer.get('error')}"
        return dict(answer["data"])

    def exemplars(self, expr: str, start: float, end: float) -> list[dict[str, Any]]:
        """Exemplars of the matching series in a range."""
        parameters = {"query": expr, "start": start, "end": end}
        answer = self._http.post("/api/v1/query_exemplars", data=parameters).json()
        assert answer["status"] == "success", answer.get("error")
        return [exemplar for series in answer["data"] for exemplar in series["exemplars"]]

    def alerts(self) -> dict[str, dict[str, Any]]:
        """Pending and firing alerts, one per name."""
        entries = self._http.get("/api/v1/alerts").json()["data"]["alerts"]
        return {alert["labels"]["alertname"]: alert for alert in entries}

    def unhealthy_rules(self) -> list[str]:
        """Names of rules whose evaluation failed or has not run yet."""
        groups = self._http.get("/api/v1/rules").json()["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert rules
        return [rule["name"] for rule in rules if rule["health"] != "ok"]


def configuration(targets: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The project's configuration with these targets (host and port), by job, instead of compose's.

    Raises: AssertionError: its jobs are others.
    """
    config: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    config["global"] |= {"scrape_interval": EVERY, "evaluation_interval": EVERY}
    config["rule_files"] = [str(file) for file in RULES]
    jobs = config["scrape_configs"]
    assert {job["job_name"] for job in jobs} == set(targets) | {"prometheus"}
    config["scrape_configs"] = [
        {"job_name": name, "static_configs": [{"targets": list(pages)}]}
        for name, pages in targets.items()
    ]
    return config


def features() -> list[str]:
    """Feature flags of compose's Prometheus."""
    command = yaml.safe_load(COMPOSE.read_text())["services"]["prometheus"]["command"]
    return [flag for flag in command if flag.startswith("--enable-feature")]


@contextmanager
def running(folder: Path, targets: Mapping[str, Sequence[str]], *more: str) -> Iterator[Prometheus]:
    """Run Prometheus with these targets and the project's rules; its data is in the folder.

    Args:
        more: additional flags.
    """
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(configuration(targets)))
    log = folder / "prometheus.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'data'}",
                "--web.listen-address=127.0.0.1:0",
                *features(),
                *more,
            ],
            stdout=output,
            stderr=output,
            preexec_fn=dies_with_parent(signal.SIGKILL),
        )
    prometheus = None
    try:
        until(lambda: process.poll() is not None or port_of(process.pid), "Prometheus' port")
        assert process.poll() is None, log.read_text()
        prometheus = Prometheus(f"http://127.0.0.1:{port_of(process.pid)}")
        until(prometheus.is_ready, "Prometheus to be ready")
        yield prometheus
    finally:
        if prometheus:
            prometheus.close()
        process.terminate()
        process.wait(DEADLINE_S)


LISTENS = "0A"
"""Code of a listening socket in the kernel's table."""


def port_of(pid: int) -> int | None:
    """Port of a process's first listening socket; Prometheus does not report a port that it was
    given."""
    sockets = set(opened(pid))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        if state == LISTENS and f"socket:[{inode}]" in sockets:
            return int(local.rpartition(":")[2], 16)
    return None


def opened(pid: int) -> Iterator[str]:
    """Targets of a process's open file descriptors; skips descriptors that close meanwhile."""
    for file in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(FileNotFoundError):
            yield str(file.readlink())
