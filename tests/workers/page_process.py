"""Program of a worker whose model waits for signals:

SIGUSR1 lets it compile, SIGUSR2 lets it step.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time

import jax

from service.settings.settings import load_settings
from service.settings.tenants import classes_of
from tests.workers.toy import SPEC, ToyPipeline
from workers.health import http
from workers.health.liveness import Liveness
from workers.loading.layout import ChosenLayout
from workers.loading.model import MeshSlice
from workers.loading.pool_models import LoadedModel
from workers.media.outputs import PLAIN_MARKING
from workers.plan.offload import ALL_ON_DEVICE
from workers.pool import metrics
from workers.pool.process import serve
from workers.programs.launcher import OneHost
from workers.slice.mesh import one_device
from workers.slice.mesh_shape import MeshShape


def main() -> int:
    logging.basicConfig(level=logging.INFO)
    settings = load_settings()
    pipeline = ToyPipeline()
    signal.signal(signal.SIGUSR1, lambda *_: pipeline.compile_gate.set())
    signal.signal(signal.SIGUSR2, lambda *_: pipeline.gate.open())
    liveness = Liveness()
    pool = settings.pools["toy"]
    with http.health_server("toy", pool.metrics_port, liveness) as page:
        assert page
        print(page.server_address[1], flush=True)
        sys.stdin.readline()  # the model is being loaded
        metrics.expect(SPEC.name, classes_of(settings.tenants.values()), 300.0)
        slots = pool.slots or 1
        chosen = ChosenLayout(MeshShape().over(1), slots, ALL_ON_DEVICE, "it is small")
        layout = one_device(jax.devices()[0])
        loaded = LoadedModel(pool, settings.models["toy"], pipeline, MeshSlice(layout, chosen))
        marking = PLAIN_MARKING
        serving = serve(settings, "toy", [loaded], OneHost(), liveness, marking, time.time())
        return asyncio.run(serving)


if __name__ == "__main__":
    sys.exit(main())
