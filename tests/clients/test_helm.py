"""The pod of the chart's `helm test` runs its command against the real front end."""

from __future__ import annotations

import sys

from tests.clients.programs import output
from tests.deploy.k8s.charts import hooks
from tests.deploy.k8s.objects import of_kind
from tests.deploy.k8s.values import ALL_WAYS

SERVICE = "http://atelier-frontend:8000"


async def test_passes_if_front_ends_reach_redis(address: str) -> None:
    (pod,) = of_kind(hooks(ALL_WAYS), "Pod")
    python, *arguments = pod["spec"]["containers"][0]["command"]
    assert python == "python"
    assert arguments[-1].startswith(SERVICE)
    local = [argument.replace(SERVICE, address) for argument in arguments]
    assert await output(sys.executable, *local) == {"status": "ok"}
