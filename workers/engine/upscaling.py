"""Upscaling of finished images: tile by tile, on one device of this process.

All images of a tile's sides or more run one program, alone, so that an image's bytes do not depend
on what runs beside it; for smaller ones one is compiled for their size. No other process takes
part: a slice of several hosts waits for its leader's device no longer than one tile takes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float, UInt8
from PIL import Image

from models.spec.model_spec import ModelSpec
from models.spec.upscalers import BUCKET, tiles_of, upscaled
from models.upscale.load import LoadedUpscaler
from models.upscale.tiles import TOP, Canvas
from service.jobs.scheduling.cost_model import CostKey, CostRow
from workers import metrics
from workers.engine.errors import not_finite
from workers.programs.bucket_programs import Program
from workers.programs.compilation import building
from workers.programs.step_latency import Recent

MAX_PROGRAMS = 16
"""Programs that an upscaler keeps: of whole tiles, and of the last sizes of small images."""
TRIALS = 2
"""Tiles that are timed at the start."""

Pixels = UInt8[np.ndarray, "h w 3"]


class TilePrograms:
    """Programs of one upscaler by the tile's shape. From any thread."""

    def __init__(self, model: str, loaded: LoadedUpscaler) -> None:
        self.loaded = loaded
        self.times = Recent()
        """Seconds of a whole tile; of smaller ones in proportion."""
        self._model = model
        self._graph, self._weights = nnx.split(loaded.network)
        self._programs: dict[tuple[int, int], Program] = {}
        self._lock = threading.Lock()

    def draw(self, tile: Pixels) -> Float[np.ndarray, "up_h up_w 3"]:
        """Draw a tile larger: values of 0 to 1, and beyond."""
        program = self._of(tile.shape[:2])
        share = tile.shape[0] * tile.shape[1] / self.loaded.spec.tile**2
        measured = Recent()
        with measured.timing():
            place = jax.device_put(tile, self.loaded.device)
            drawn = np.asarray(program(self._weights, place))
        self.times.observe((measured.median or 0.0) / share)
        return drawn

    def warm_up(self) -> None:
        """Compile whole tiles, and time them."""
        side = self.loaded.spec.tile
        for _ in range(TRIALS):
            self.draw(np.zeros((side, side, 3), np.uint8))

    def seconds(self, height: int, width: int) -> float:
        """Seconds that an image takes, undisturbed."""
        return tiles_of(width, height, self.loaded.spec) * (self.times.median or 0.0)

    def _of(self, shape: tuple[int, ...]) -> Program:
        height, width = shape
        with self._lock:
            if (height, width) not in self._programs:
                if len(self._programs) >= MAX_PROGRAMS:  # the first is of whole tiles
                    del self._programs[list(self._programs)[1]]
                self._programs[height, width] = self._compiled(height, width)
            return self._programs[height, width]

    def _compiled(self, height: int, width: int) -> Program:
        place = jax.sharding.SingleDeviceSharding(self.loaded.device)
        tile = jax.ShapeDtypeStruct((height, width, 3), np.uint8, sharding=place)

        def drawn(weights: nnx.State, tile: jax.Array) -> jax.Array:
            network = nnx.merge(self._graph, weights)
            dtype = network.conv_first.kernel[...].dtype
            image = (tile[None].astype(jnp.float32) / np.float32(TOP)).astype(dtype)
            return network(image)[0].astype(jnp.float32)

        with metrics.compiling("upscale"), building(), metrics.building(self._model):
            return jax.jit(drawn).lower(self._weights, tile).compile()


class Upscaling:
    """Upscaling of one image: `draw` each of `tiles`, one after the other, then take `image`."""

    def __init__(self, programs: TilePrograms, pixels: Pixels, scale: float) -> None:
        loaded = programs.loaded
        self._programs = programs
        self._size = upscaled(pixels.shape[1], scale), upscaled(pixels.shape[0], scale)
        self._canvas = Canvas(pixels, loaded.spec.tile, loaded.spec.scale, loaded.unshuffle)

    def works(self) -> Iterator[partial[None]]:
        """Yield what is to be called, for each tile."""
        return (partial(self._draw, *tile) for tile in self._canvas.tiles())

    def _draw(self, row: int, column: int) -> None:
        """Raises: GenerationFailed: the tile is not finite."""
        drawn = self._programs.draw(self._canvas.read(row, column))
        if not np.isfinite(drawn).all():
            raise not_finite("the upscaler")
        self._canvas.write(row, column, drawn)

    def image(self) -> Pixels:
        """Return the whole image, resized where a smaller scale was asked for."""
        drawn = self._canvas.image()
        if drawn.shape[1::-1] == self._size:
            return drawn
        small = Image.fromarray(drawn).resize(self._size, Image.Resampling.LANCZOS)
        return np.asarray(small)


class Upscalers:
    """Upscalers of an engine, by name."""

    def __init__(self, spec: ModelSpec, loaded: Mapping[str, LoadedUpscaler]) -> None:
        self._programs = {name: TilePrograms(spec.name, one) for name, one in loaded.items()}

    def warm_up(self) -> None:
        """Compile and time all."""
        for programs in self._programs.values():
            programs.warm_up()

    def begin(self, asked: Mapping[str, Any], pixels: Pixels) -> Upscaling:
        """Begin to draw an image larger, as a request asks for it."""
        return Upscaling(self._programs[asked["name"]], pixels, asked["scale"])

    def seconds(self, asked: Mapping[str, Any] | None, shape: Sequence[int]) -> float:
        """Seconds that an image takes, undisturbed; 0 where none is asked for."""
        return self._programs[asked["name"]].seconds(*shape[:2]) if asked else 0.0

    def loaded(self, name: str) -> LoadedUpscaler:
        """Return an upscaler."""
        return self._programs[name].loaded

    def rows(self, layout: str, devices: int) -> dict[CostKey, CostRow]:
        """Return what a tile of each takes, as a bucket of its own."""
        return {
            CostKey(BUCKET + name, layout, 1): CostRow(
                step_s=seconds, encode_s=0.0, decode_s=0.0, devices=devices
            )
            for name, programs in self._programs.items()
            if (seconds := programs.times.median)
        }
