"""Upscaler of a few layers, whose tiles may wait at a gate."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from models.spec.upscalers import Upscaler
from models.upscale.config import RrdbConfig
from models.upscale.load import LoadedUpscaler
from models.upscale.network import RrdbNet
from tests.workers.toy import Gate

CONFIG = RrdbConfig(blocks=1, features=4, growth=2, doublings=1, unshuffle=1)
TILE = 8


class GatedNet(RrdbNet):
    """Upscaler network that waits at a gate before it runs."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(CONFIG, rngs=nnx.Rngs(0))
        self.gate = gate

    def __call__(self, image: Any) -> Any:
        return super().__call__(jax.pure_callback(self.gate, jax.typeof(image), image))


def upscalers(gate: Gate | None = None) -> dict[str, LoadedUpscaler]:
    """Return the upscaler `twice`, with random weights."""
    network = GatedNet(gate) if gate else RrdbNet(CONFIG, rngs=nnx.Rngs(0))
    spec = Upscaler(scale=CONFIG.scale, tile=TILE, digest="ab" * 32)
    return {"twice": LoadedUpscaler(spec, network, jax.devices()[0])}
