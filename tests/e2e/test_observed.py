"""A real system, watched: its pages, what they count, and what it logs."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.conftest import launch
from tests.e2e.system import System

MARKER = "zz" + secrets.token_hex(8)
"""In every prompt, and wherever else a client may write something."""
SIZES = [(32 + 16 * n, 48) for n in range(20)]
"""More shapes than a pool names."""
TENANT = {"metrics_class": "gold"}
SETTINGS = {
    "ATELIER_LOG_LEVEL": "debug",
    "ATELIER_LOG_FORMAT": "json",
    "ATELIER_TENANTS": json.dumps({"default": TENANT}),
    "ATELIER_POOLS": json.dumps(
        {"tiny": {"model": "tiny", "slots": 2, "metrics_port": 0, "snapshot_share": 0}}
    ),
    "ATELIER_QUEUE__REAP_EVERY_S": "0.2",
}


@dataclass
class Watched:
    system: System
    front: httpx.Client
    pool: httpx.Client

    def page(self, which: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        answer = getattr(self, which).get("/metrics")
        assert answer.status_code == 200
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }

    def value(self, name: str, page: str = "both", **labels: str) -> float:
        """The sum of the samples with at least these labels."""
        pages = ("front", "pool") if page == "both" else (page,)
        found = [
            value
            for each in pages
            for (sample, told), value in self.page(each).items()
            if sample == name and labels.items() <= dict(told).items()
        ]
        assert found, f"{name} {labels} is on no page"
        return sum(found)

    def generate(self, **fields: Any) -> dict[str, Any]:
        wait = {"Prefer": "wait=60"}
        body = {"prompt": MARKER, "seed": 1, "num_inference_steps": 2, **fields}
        return self.front.post("/v1/generate", json=body, headers=wait).json()


@pytest.fixture(scope="module")
def watched(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    system = launch(tmp_path_factory.mktemp("watched"), checkpoint, **SETTINGS)
    try:
        told = system.wait_for(r"health and metrics are told on port (\d+)")
        with httpx.Client(
            base_url=f"http://127.0.0.1:{told[1]}", timeout=30, trust_env=False
        ) as pool:
            check_starting(pool)
            with httpx.Client(base_url=system.url, timeout=90, trust_env=False) as front:
                yield Watched(system, front, pool)
    finally:
        system.close()


def check_starting(pool: httpx.Client) -> None:
    """It is alive from the first moment, long before it is ready."""
    assert pool.get("/healthz").json() == {"status": "ok"}
    ready = pool.get("/readyz")
    assert ready.status_code == 503 and int(ready.headers["retry-after"]) > 0
    assert ready.json()["detail"].startswith("it ")


def test_a(watched: Watched) -> None:
    print(watched.generate())
    for page in ("front", "pool"):
        text = getattr(watched, page).get("/metrics").text
        Path(f"/tmp/metrics-{page}.txt").write_text(text)
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, text=True
        )
        print(page, done.returncode, done.stdout, done.stderr)
    print("\n".join(watched.system.lines[-40:]))
    assert 0
