"""`helm test` of the chart: the command of its pod, against the real front end."""

from __future__ import annotations

import sys

from tests.clients.programs import output
from tests.deploy.k8s.charts import hooks
from tests.deploy.k8s.objects import of_kind
from tests.deploy.k8s.values import ALL_WAYS

SERVICE = "http://atelier-frontend:8000"


async def test_it_passes_where_front_ends_reach_their_redis(address: str) -> None:
    (pod,) = of_kind(hooks(ALL_WAYS), "Pod")
    python, *arguments = pod["spec"]["containers"][0]["command"]
    assert python == "python"
    assert arguments[-1].startswith(SERVICE)
    here = [one.replace(SERVICE, address) for one in arguments]
    assert await output(sys.executable, *here) == {"status": "ok"}
