"""Upscaling of finished images: tile by tile, on one device of this process.

All images at least as large as a tile share one unbatched program, so their bytes do not depend on
concurrent work. Smaller images need a program compiled for their size. Other processes take no
part: a slice of several hosts waits for the leader's device at most one tile.
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
"""Programs that an upscaler caches: the one of whole tiles, and those of the latest small sizes."""
TRIALS = 2
"""Number of tiles that the warm-up times."""

Pixels = UInt8[np.ndarray, "h w 3"]


class TilePrograms:
    """Compiled programs of one upscaler, by tile shape. Callable from any thread."""

    def __init__(self, model: str, loaded: LoadedUpscaler) -> None:
        self.loaded = loaded
        self.times = Recent()
        """Seconds of a whole tile; smaller tiles are scaled by area."""
        self._model = model
        self._graph, self._weights = nnx.split(loaded.network)
        self._programs: dict[tuple[int, int], Program] = {}
        self._lock = threading.Lock()

    def upscale(self, tile: Pixels) -> Float[np.ndarray, "up_h up_w 3"]:
        """Upscale a tile; values are nominally 0 to 1, but may exceed it."""
        program = self._of(tile.shape[:2])
        share = tile.shape[0] * tile.shape[1] / self.loaded.spec.tile**2
        measured = Recent()
        with measured.timing():
            device_tile = jax.device_put(tile, self.loaded.device)
            upscaled_tile = np.asarray(program(self._weights, device_tile))
        self.times.observe((measured.median or 0.0) / share)
        return upscaled_tile

    def warm_up(self) -> None:
        """Compile the upscaler's program for whole tiles, and time it."""
        side = self.loaded.spec.tile
        for _ in range(TRIALS):
            self.upscale(np.zeros((side, side, 3), np.uint8))

    def seconds(self, height: int, width: int) -> float:
        """Return the seconds that upscaling an image takes without interruption."""
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
        sharding = jax.sharding.SingleDeviceSharding(self.loaded.device)
        tile = jax.ShapeDtypeStruct((height, width, 3), np.uint8, sharding=sharding)

        def upscale_tile(weights: nnx.State[Any, Any], tile: jax.Array) -> jax.Array:
            network = nnx.merge(self._graph, weights)
            dtype = network.conv_first.kernel[...].dtype
            image = (tile[None].astype(jnp.float32) / np.float32(TOP)).astype(dtype)
            return network(image)[0].astype(jnp.float32)

        with metrics.compiling("upscale"), building(), metrics.building(self._model):
            return jax.jit(upscale_tile).lower(self._weights, tile).compile()


class Upscaling:
    """Upscaling of one image: call each of `tile_tasks` in order, then `image`."""

    def __init__(self, programs: TilePrograms, pixels: Pixels, scale: float) -> None:
        loaded = programs.loaded
        self._programs = programs
        self._size = upscaled(pixels.shape[1], scale), upscaled(pixels.shape[0], scale)
        self._canvas = Canvas(pixels, loaded.spec.tile, loaded.spec.scale, loaded.unshuffle)

    def tile_tasks(self) -> Iterator[partial[None]]:
        """Yield one callable per tile, which upscales it."""
        return (partial(self._upscale_tile, *tile) for tile in self._canvas.tiles())

    def _upscale_tile(self, row: int, column: int) -> None:
        """Upscale one tile of the image into the canvas.

        Raises: GenerationFailed: it is not finite.
        """
        upscaled_tile = self._programs.upscale(self._canvas.read(row, column))
        if not np.isfinite(upscaled_tile).all():
            raise not_finite("the upscaler")
        self._canvas.write(row, column, upscaled_tile)

    def image(self) -> Pixels:
        """Return the complete image, downscaled if the request has a smaller scale."""
        upscaled_image = self._canvas.image()
        if upscaled_image.shape[1::-1] == self._size:
            return upscaled_image
        small = Image.fromarray(upscaled_image).resize(self._size, Image.Resampling.LANCZOS)
        return np.asarray(small)


class Upscalers:
    """Upscalers of an engine, by name, which enlarge finished images."""

    def __init__(self, spec: ModelSpec, loaded: Mapping[str, LoadedUpscaler]) -> None:
        self._programs = {
            name: TilePrograms(spec.name, loaded_upscaler)
            for name, loaded_upscaler in loaded.items()
        }

    def warm_up(self) -> None:
        """Compile the program of each upscaler, and time it."""
        for programs in self._programs.values():
            programs.warm_up()

    def begin(self, options: Mapping[str, Any], pixels: Pixels) -> Upscaling:
        """Start upscaling an image with the request's options."""
        return Upscaling(self._programs[options["name"]], pixels, options["scale"])

    def seconds(self, options: Mapping[str, Any] | None, shape: Sequence[int]) -> float:
        """Return the seconds that upscaling an image takes uninterrupted; 0 without options."""
        return self._programs[options["name"]].seconds(*shape[:2]) if options else 0.0

    def loaded(self, name: str) -> LoadedUpscaler:
        """Return the loaded upscaler with that name."""
        return self._programs[name].loaded

    def rows(self, layout: str, devices: int) -> dict[CostKey, CostRow]:
        """Return the cost of a tile of each upscaler, as a bucket of the queue."""
        return {
            CostKey(BUCKET + name, layout, 1): CostRow(
                step_s=seconds, encode_s=0.0, decode_s=0.0, devices=devices
            )
            for name, programs in self._programs.items()
            if (seconds := programs.times.median)
        }
