"""Images of the dashboards from some minutes of a real system: `make -C lab pictures`. Two of the
demo's models serve two tenants with a varying number of clients; a pool is killed midway."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from lab.watching.images import draw
from lab.watching.span import Span
from tests.conftest import COMPILED
from tests.deploy.watching.files import dashboards
from tests.deploy.watching.prometheus import Prometheus, running
from tests.e2e.system import ATELIER, READY, System, environment, until

FOLDER = Path("docs/images")
PAGES = {"flux-demo": 19101, "wan-demo": 19102}
"""Models with fixed metrics ports, so that a restarted pool has the same port."""
TENANTS = {"shop": {"metrics_class": "paying", "weight": 3}, "lab": {"metrics_class": "free"}}
CLIENTS = 8
FIRST = 2
"""Number of clients at the start and at the end; the others arrive and leave in sequence."""
READY_S = 600
"""Time until the pools are ready on a busy machine."""
KILL_AT = 0.5
"""Time of the pool's kill, as a share of the run."""
WAIT = {"Prefer": "wait=120"}
SEED = 7
DEMO = Path("models/demo")


@contextmanager
def system(folder: Path) -> Iterator[System]:
    """Run a system that requires API keys."""
    pools = {
        name: {"model": name, "slots": 4, "metrics_port": port} for name, port in PAGES.items()
    }
    variables = {
        "ATELIER_POOLS": json.dumps(pools),
        "ATELIER_TENANTS": json.dumps(TENANTS),
        "ATELIER_QUEUE__LEASE_S": "5",
        "ATELIER_SERVER__KEYS": "true",
    }
    models = [f"--model={name}={DEMO / name.removesuffix('-demo')}" for name in PAGES]
    running_system = System(folder / "state", *models, "--dtype", "float32", **variables)
    try:
        yield running_system
    finally:
        running_system.close()


def key(tenant: str, folder: Path) -> str:
    """Create an API key for a tenant."""
    create = (*ATELIER, "keys", "create", "--tenant", tenant, "--state", str(folder / "state"))
    return subprocess.run(
        create, env=environment(), check=True, capture_output=True, text=True
    ).stdout.strip()


def request(rng: random.Random) -> dict[str, Any]:
    """Make a random request; one in twenty is invalid."""
    model = rng.choices(list(PAGES), (3, 1))[0]
    fields: dict[str, Any] = {
        "model": model,
        "prompt": "a red circle on a blue background",
        "num_inference_steps": rng.choice((4, 8, 12, 20)),
        "num_images": 1 if model == "wan-demo" else rng.choice((1, 1, 2, 4)),
        "priority": rng.choice(("low", "normal", "normal", "high")),
    }
    if rng.random() < 0.3:
        fields["deadline_s"] = rng.choice((8, 20, 60))
    if rng.random() < 0.05:
        fields["width"] = 7
    return fields


@dataclass(frozen=True)
class Visit:
    """A client's visit with start and end in monotonic time."""

    number: int
    comes_s: float
    leaves_s: float

    def send(self, url: str, api_key: str) -> None:
        """Send requests in sequence; most wait for the result, and half of the others are
        canceled."""
        rng = random.Random(SEED + self.number)
        headers = {"Authorization": f"Bearer {api_key}"}
        time.sleep(max(0, self.comes_s - time.monotonic()))
        with httpx.Client(base_url=url, headers=headers, timeout=150, trust_env=False) as http:
            while time.monotonic() < self.leaves_s:
                headers_ = WAIT if rng.random() < 0.9 else {}
                response = http.post("/v1/generate", json=request(rng), headers=headers_)
                if response.status_code == 202 and rng.random() < 0.5:
                    http.post(f"/v1/jobs/{response.json()['id']}/cancel")


def visits(seconds: float) -> list[Visit]:
    """Make visits: clients arrive in sequence and leave twice as fast."""
    now, step_s = time.monotonic(), seconds / (CLIENTS + 4)
    after = [max(0, number - FIRST) for number in range(CLIENTS)]
    before = [max(0, CLIENTS - number - FIRST) / 2 for number in range(CLIENTS)]
    return [
        Visit(number, now + step_s * after[number], now + seconds - step_s * before[number])
        for number in range(CLIENTS)
    ]


def work(running_system: System, keys: list[str], seconds: float) -> None:
    """Run the clients, and kill a pool midway."""
    kill_at_s = time.monotonic() + KILL_AT * seconds
    with ThreadPoolExecutor(CLIENTS) as threads:
        tasks = [
            threads.submit(visit.send, running_system.url, keys[visit.number % len(keys)])
            for visit in visits(seconds)
        ]
        time.sleep(max(0, kill_at_s - time.monotonic()))
        os.kill(running_system.child("worker --pool flux-demo"), signal.SIGKILL)
        for task in tasks:
            task.result()


def run(folder: Path, seconds: float) -> None:
    os.environ[COMPILED] = str(folder / "compiled")
    with system(folder) as running_system:
        running_system.wait_for(READY, READY_S)
        keys = [key(tenant, folder) for tenant in TENANTS]
        pages = [f"127.0.0.1:{port}" for port in PAGES.values()]
        targets = {
            "atelier-frontend": [running_system.url.removeprefix("http://")],
            "atelier-pools": pages,
        }
        with running(folder, targets) as prometheus:
            until(lambda: prometheus.query("atelier_queue_up"), "the first scrape")
            start = time.time()
            work(running_system, keys, seconds)
            show(Span(prometheus, start, time.time()))


def show(span: Span) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for uid, dashboard in dashboards().items():
        file = FOLDER / f"dashboards-{uid.removeprefix('atelier-')}.png"
        draw(dashboard, span, file)
        print(file, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=6, metavar="N")
    parser.add_argument("--prometheus", metavar="URL", help="one that has data, for its last ones")
    options = parser.parse_args()
    seconds = 60 * options.minutes
    if options.prometheus:
        show(Span(Prometheus(options.prometheus), time.time() - seconds, time.time()))
        return
    with tempfile.TemporaryDirectory(prefix="watching-") as folder:
        run(Path(folder), seconds)


if __name__ == "__main__":
    main()
