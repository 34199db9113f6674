"""Stand-in worker that generates pixels from seed and prompt, and writes files with recipes as real
workers do."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from service.jobs.model.job import MadeBy, Output
from service.jobs.queue import Claim
from service.jobs.storage.object_store import output_key, sibling_key
from service.recipes.recipe import recipe_of, step_digests
from tests.service.standin import StandIn
from workers.media.outputs import Marking, files

CPU = MadeBy(
    checkpoint="stand-in",
    platform="cpu",
    chip="cpu",
    layout="one device",
    jax="0.8.0",
    programs="a" * 64,
)
TPU = CPU.model_copy(update={"platform": "tpu", "chip": "v6e", "programs": "b" * 64})
BLOCK_PX = 8
"""Side of the squares of one color, so that lossy compression changes them little."""


@dataclass
class Brush:
    """Current properties of the generated images."""

    made_by: MadeBy | None = CPU
    off_by: int = 0
    """Levels added to each subpixel of the upper left square."""
    digests: tuple[int, ...] = ()
    """Digests of the latents after each step."""
    marking: Marking = field(default_factory=Marking)


class Painter(StandIn):
    """Stand-in worker that generates the requested images with the current `Brush`."""

    def __init__(self, *arguments: object, **rest: object) -> None:
        super().__init__(*arguments, **rest)
        self.brush = Brush()

    async def _output(self, claim: Claim, index: int) -> Output:
        request = claim.job.request
        frames = request.get("num_frames", 1)
        in_parts = frames if request["output"]["format"] == "png" else 1
        number, frame = divmod(index, in_parts)
        seed = request["seed"] + number
        recipe = recipe_of(request, seed, self.spec, claim.job.loras, self._images(request))
        steps = step_digests(self.brush.digests)
        recipe = recipe.model_copy(update={"step_digests": steps})
        made = files(self._pixels(request, seed, frames), request, recipe, self.brush.marking)
        file = list(made)[frame]
        key = output_key(claim.job.id, claim.fence, index, file.content_type)
        await self.store.put(key, file.data, file.content_type)
        for name, small in file.small_images.items():
            await self.store.put(sibling_key(key, name), small, "image/webp")
        return file.described(index, key, seed, self.brush.made_by)

    def _images(self, request: dict[str, object]) -> dict[str, str]:
        return {"image": "cd" * 32} if request.get("image") else {}

    def _pixels(self, request: dict[str, object], seed: int, frames: int) -> np.ndarray:
        height, width = int(request["height"]), int(request["width"])
        digest = hashlib.sha256(f"{request['prompt']} {seed}".encode()).digest()
        shape = (frames, height // BLOCK_PX, width // BLOCK_PX, 3)
        random = np.random.default_rng(int.from_bytes(digest[:8], "big"))
        blocks = random.integers(32, 224, shape, np.uint8)
        pixels = blocks.repeat(BLOCK_PX, 1).repeat(BLOCK_PX, 2)
        pixels[:, :BLOCK_PX, :BLOCK_PX] += self.brush.off_by
        return pixels if "num_frames" in request else pixels[0]
