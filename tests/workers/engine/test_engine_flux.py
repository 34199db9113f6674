"""Engine with a tiny Flux, compared with the plain denoising loop."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from models import registry
from models.interface.pipeline import Pipeline, generate
from models.parallel.axis_rules import Layout
from tests.workers.flux import REQUEST, SLOTS
from tests.workers.resume import disturbed_at
from workers.engine.engine import Engine

PIXEL_TOLERANCE = 2
"""Levels of 255: programs of another batch size than the plain loop's round differently."""


@pytest.fixture(scope="module")
def flux(flux_folder: Path) -> Pipeline:
    return registry.load("flux", str(flux_folder), "float32", {})


def picture() -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


async def test_batching_does_not_change_images(flux: Pipeline, layout: Layout) -> None:
    """Text-to-image and image-to-image requests of unequal length and guidance, more than slots."""
    requests: list[tuple[dict[str, Any], dict[str, bytes]]] = [
        ({**REQUEST}, {}),
        ({**REQUEST, "seed": 2, "num_inference_steps": 11, "guidance_scale": 1.5}, {}),
        ({**REQUEST, "seed": 3, "prompt": "a star", "num_inference_steps": 3}, {}),
        ({**REQUEST, "seed": 4, "strength": 0.6}, {"image": picture()}),
    ]
    engine = Engine(flux, layout, SLOTS)
    try:
        await engine.readiness.warm_up([REQUEST])
        await engine.readiness.larger_ready([REQUEST])
        together = await asyncio.gather(*(engine.generate(*request) for request in requests))
        alone = [await engine.generate(*request) for request in requests]
    finally:
        engine.close()
    for output, other in zip(together, alone, strict=True):
        difference = np.abs(output.pixels.astype(int) - other.pixels)
        assert difference.max() <= PIXEL_TOLERANCE
    expected = generate(flux, *requests[-1]).astype(int)
    assert np.abs(together[-1].pixels - expected).max() <= PIXEL_TOLERANCE
    first, second = together[0].pixels.astype(int), together[1].pixels
    assert np.abs(first - second).mean() > 10, "images that are all alike prove nothing"


async def test_resumed_image_is_bitwise_equal(flux: Pipeline, layout: Layout) -> None:
    """An image-to-image request encodes its image again, but only for the embeddings."""
    requests = [
        ({**REQUEST, "num_inference_steps": 20}, {}),
        ({**REQUEST, "num_inference_steps": 16, "strength": 0.75}, {"image": picture()}),
    ]
    first, second = Engine(flux, layout, slots=1), Engine(flux, layout, slots=1)
    try:
        for fields, images in requests:
            full, snapshot = await disturbed_at(3, first, fields, images)
            assert set(snapshot.leaves) == {"['latents']", "['denoised']"}
            resumed = await second.generate(fields, images, begin=snapshot)
            assert (resumed.pixels == full.pixels).all()
    finally:
        first.close()
        second.close()
