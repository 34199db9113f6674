"""An upscaler of a few layers, and one whose tiles wait at a gate."""

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
    """Draws as its base does, when the gate lets it."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(CONFIG, rngs=nnx.Rngs(0))
        self.gate = gate

    def __call__(self, image: Any) -> Any:
        return super().__call__(jax.pure_callback(self.gate, jax.typeof(image), image))


def upscalers(gate: Gate | None = None) -> dict[str, LoadedUpscaler]:
    """Upscaler `twice`, of random weights."""
    network = GatedNet(gate) if gate else RrdbNet(CONFIG, rngs=nnx.Rngs(0))
    spec = Upscaler(scale=CONFIG.scale, tile=TILE, digest="ab" * 32)
    return {"twice": LoadedUpscaler(spec, network, jax.devices()[0])}
