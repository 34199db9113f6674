"""Write the dashboards: `python -m tools.dashboards`, or `make dashboards`."""

from __future__ import annotations

import json
from pathlib import Path

from tools.dashboards.cost import COSTS
from tools.dashboards.panels import Dashboard
from tools.dashboards.path import PATH
from tools.dashboards.pools import POOLS
from tools.dashboards.service import SERVICE

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards"
DASHBOARDS = {"service": SERVICE, "pools": POOLS, "path": PATH, "cost": COSTS}
"""Dashboards by the name of their file."""


def text(dashboard: Dashboard) -> str:
    """Return the JSON file of a dashboard for Grafana."""
    return json.dumps(dashboard.json(), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the JSON files of all Grafana dashboards."""
    for name, dashboard in DASHBOARDS.items():
        (FOLDER / f"{name}.json").write_text(text(dashboard))


if __name__ == "__main__":
    main()
