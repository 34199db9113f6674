"""A real Prometheus with the project's own configuration, as a process."""

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
"""How often it scrapes and evaluates here."""
PATIENCE_S = 30.0
"""With one query, on a busy machine."""


class Prometheus:
    """Its HTTP interface."""

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
        """The series that it gives now, or then. Raises: AssertionError: it is no PromQL."""
        given = {"query": expr} if at is None else {"query": expr, "time": at}
        return list(self._ask("query", given)["result"])

    def span(self, expr: str, start: float, end: float, step_s: float) -> list[dict[str, Any]]:
        """The series that it gave over that time. Times are seconds since the epoch."""
        given = {"query": expr, "start": start, "end": end, "step": step_s}
        return list(self._ask("query_range", given)["result"])

    def _ask(self, what: str, given: Mapping[str, Any]) -> dict[str, Any]:
        said = self._http.post(f"/api/v1/{what}", data=dict(given)).json()
        assert said["status"] == "success", f"{given['query']}\n{said.get('error')}"
        return dict(said["data"])

    def exemplars(self, expr: str, start: float, end: float) -> list[dict[str, Any]]:
        """Exemplars of the series that it names, of that time."""
        given = {"query": expr, "start": start, "end": end}
        found = self._http.post("/api/v1/query_exemplars", data=given).json()
        assert found["status"] == "success", found.get("error")
        return [one for series in found["data"] for one in series["exemplars"]]

    def alerts(self) -> dict[str, dict[str, Any]]:
        """One of each that is pending or fires, by name."""
        found = self._http.get("/api/v1/alerts").json()["data"]["alerts"]
        return {alert["labels"]["alertname"]: alert for alert in found}

    def unhealthy_rules(self) -> list[str]:
        """Names of rules that could not be evaluated, or not yet."""
        groups = self._http.get("/api/v1/rules").json()["data"]["groups"]
        found = [rule for group in groups for rule in group["rules"]]
        assert found
        return [rule["name"] for rule in found if rule["health"] != "ok"]


def configuration(targets: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The project's own, with these targets (host and port) in place of those of compose, by job.

    Raises: AssertionError: it has other jobs.
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
    """Those that compose's Prometheus has."""
    command = yaml.safe_load(COMPOSE.read_text())["services"]["prometheus"]["command"]
    return [flag for flag in command if flag.startswith("--enable-feature")]


@contextmanager
def running(folder: Path, targets: Mapping[str, Sequence[str]], *more: str) -> Iterator[Prometheus]:
    """It scrapes these targets and evaluates the project's rules; its data lie in the folder.

    Args:
        more: flags of its command.
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
"""A socket's state in the kernel's table."""


def port_of(pid: int) -> int | None:
    """Of the first socket that a process listens on; Prometheus does not say which it was given."""
    own = set(opened(pid))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        if state == LISTENS and f"socket:[{inode}]" in own:
            return int(local.rpartition(":")[2], 16)
    return None


def opened(pid: int) -> Iterator[str]:
    """What its file descriptors are, as far as they are still open."""
    for file in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(FileNotFoundError):
            yield str(file.readlink())
