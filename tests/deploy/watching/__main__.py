"""Images of the dashboards, from some minutes of a real system: `make pictures`.

Two of the demo's models at work for two tenants, whose clients come and go; a pool is killed on the
way.
"""

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

from tests.conftest import COMPILED
from tests.deploy.watching.files import dashboards
from tests.deploy.watching.pictures import draw
from tests.deploy.watching.prometheus import Prometheus, running
from tests.deploy.watching.span import Span
from tests.e2e.system import ATELIER, READY, System, environment, until

FOLDER = Path("docs/images")
PAGES = {"flux-demo": 19101, "wan-demo": 19102}
"""The models, and where their pools show their metrics: the same port for one that starts anew."""
TENANTS = {"shop": {"metrics_class": "paying", "weight": 3}, "lab": {"metrics_class": "free"}}
CLIENTS = 8
FIRST = 2
"""That are there from the beginning; the others come one after the other, and leave so."""
READY_S = 600
"""Until the pools are, on a busy machine."""
KILL_AT = 0.5
"""Of the time, when a pool dies."""
WAIT = {"Prefer": "wait=120"}
SEED = 7
DEMO = Path("models/demo")


@contextmanager
def system(folder: Path) -> Iterator[System]:
    """It wants keys."""
    pools = {name: {"model": name, "slots": 4, "metrics_port": at} for name, at in PAGES.items()}
    given = {
        "ATELIER_POOLS": json.dumps(pools),
        "ATELIER_TENANTS": json.dumps(TENANTS),
        "ATELIER_QUEUE__LEASE_S": "5",
        "ATELIER_SERVER__KEYS": "true",
    }
    models = [f"--model={name}={DEMO / name.removesuffix('-demo')}" for name in PAGES]
    one = System(folder / "state", *models, "--dtype", "float32", **given)
    try:
        yield one
    finally:
        one.close()


def key(tenant: str, folder: Path) -> str:
    """A new one."""
    create = (*ATELIER, "keys", "create", "--tenant", tenant, "--state", str(folder / "state"))
    return subprocess.run(
        create, env=environment(), check=True, capture_output=True, text=True
    ).stdout.strip()


def request(dice: random.Random) -> dict[str, Any]:
    """What a client may ask for; one in twenty is no request."""
    model = dice.choices(list(PAGES), (3, 1))[0]
    asked: dict[str, Any] = {
        "model": model,
        "prompt": "a red circle on a blue background",
        "num_inference_steps": dice.choice((4, 8, 12, 20)),
        "num_images": 1 if model == "wan-demo" else dice.choice((1, 1, 2, 4)),
        "priority": dice.choice(("low", "normal", "normal", "high")),
    }
    if dice.random() < 0.3:
        asked["deadline_s"] = dice.choice((8, 20, 60))
    if dice.random() < 0.05:
        asked["width"] = 7
    return asked


@dataclass(frozen=True)
class Visit:
    """One client's: it comes and leaves at these times, of the monotonic clock."""

    number: int
    comes_s: float
    leaves_s: float

    def send(self, url: str, api_key: str) -> None:
        """One request after the other; most of them are waited for, some that are not canceled."""
        dice = random.Random(SEED + self.number)
        headers = {"Authorization": f"Bearer {api_key}"}
        time.sleep(max(0, self.comes_s - time.monotonic()))
        with httpx.Client(base_url=url, headers=headers, timeout=150, trust_env=False) as http:
            while time.monotonic() < self.leaves_s:
                asked = WAIT if dice.random() < 0.9 else {}
                answer = http.post("/v1/generate", json=request(dice), headers=asked)
                if answer.status_code == 202 and dice.random() < 0.5:
                    http.post(f"/v1/jobs/{answer.json()['id']}/cancel")


def visits(seconds: float) -> list[Visit]:
    """Clients come one after the other, and leave so, twice as fast."""
    now, step_s = time.monotonic(), seconds / (CLIENTS + 4)
    after = [max(0, number - FIRST) for number in range(CLIENTS)]
    before = [max(0, CLIENTS - number - FIRST) / 2 for number in range(CLIENTS)]
    return [
        Visit(number, now + step_s * after[number], now + seconds - step_s * before[number])
        for number in range(CLIENTS)
    ]


def work(one: System, keys: list[str], seconds: float) -> None:
    """What clients do in that time; on the way a pool is killed."""
    dies_s = time.monotonic() + KILL_AT * seconds
    with ThreadPoolExecutor(CLIENTS) as threads:
        tasks = [
            threads.submit(visit.send, one.url, keys[visit.number % len(keys)])
            for visit in visits(seconds)
        ]
        time.sleep(max(0, dies_s - time.monotonic()))
        os.kill(one.child("worker --pool flux-demo"), signal.SIGKILL)
        for task in tasks:
            task.result()


def run(folder: Path, seconds: float) -> None:
    os.environ[COMPILED] = str(folder / "compiled")
    with system(folder) as one:
        one.wait_for(READY, READY_S)
        keys = [key(tenant, folder) for tenant in TENANTS]
        pages = [f"127.0.0.1:{port}" for port in PAGES.values()]
        targets = {"atelier-frontend": [one.url.removeprefix("http://")], "atelier-pools": pages}
        with running(folder, targets) as prometheus:
            until(lambda: prometheus.query("atelier_queue_up"), "the first scrape")
            start = time.time()
            work(one, keys, seconds)
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
