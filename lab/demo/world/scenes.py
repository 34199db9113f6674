"""Training scenes of the demo, drawn at random without those held out, and their rendering.

Shapes are solid, or outlined for the outline adapter. A solid shape fills the box [-radius,
radius]² around its centre: the set with a negative signed distance to its edge, in pixels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from lab.demo.world.vocabulary import (
    COLOURS,
    NEW_COLOURS,
    Scene,
    Thing,
    one_object_scenes,
    two_object_scenes,
)

Cover = Callable[[np.ndarray], np.ndarray]
"""Function from the pixels' signed distances to a shape's edge (negative inside) to coverage, 0 to
1."""

SIZE_PX = 96
"""Side of a demo image."""
RADIUS_PX = {"small": (14.0, 18.0), "large": (23.0, 28.0), None: (14.0, 28.0)}
PAIR_RADIUS_PX = (12.0, 17.0)
STROKE_PX = 5.0
"""Stroke width of an outline; the autoencoder breaks or tints thinner strokes."""
PLACE_OFFSET_PX = {
    "left": (-16.0, 0.0),
    "right": (16.0, 0.0),
    "top": (0.0, -16.0),
    "bottom": (0.0, 16.0),
    "middle": (0.0, 0.0),
    None: (0.0, 0.0),
}
PLACE_SPREAD_PX = 3.0
FREE_SPREAD_PX = 12.0
PAIR_SPREAD_PX = 4.0
PAIR_OFFSET_PX = 22.0
RELATION_DIRECTION = {
    "above": (0.0, -1.0),
    "below": (0.0, 1.0),
    "left": (-1.0, 0.0),
    "right": (1.0, 0.0),
}


def solid(distance: np.ndarray) -> np.ndarray:
    """Cover a shape's interior, given distances to its edge."""
    return np.clip(0.5 - distance, 0, 1)


def outlined(distance: np.ndarray) -> np.ndarray:
    """Cover a stroke centred on a shape's edge, given distances to it."""
    return solid(np.abs(distance) - STROKE_PX / 2)


def draw(scene: Scene, rng: np.random.Generator, cover: Cover = solid) -> np.ndarray:
    """Draw a scene, uint8 [96, 96, 3]; unspecified properties are random."""
    image = np.broadcast_to(np.array(COLOURS[scene.background], np.float32), (SIZE_PX, SIZE_PX, 3))
    for thing, centre, radius in _layout(scene, rng):
        image = painted(image, thing, centre, radius, cover)
    return np.rint(image).astype(np.uint8)


def painted(
    image: np.ndarray, thing: Thing, centre: np.ndarray, radius: float, cover: Cover = solid
) -> np.ndarray:
    """Paint a thing on a square image in 0 to 255; `centre` is (x, y) in pixels."""
    covered = cover(_distance(thing.shape, centre, radius, len(image)))[..., None]
    return image + covered * (np.array(_INKS[thing.colour], np.float32) - image)


def _layout(scene: Scene, rng: np.random.Generator) -> list[tuple[Thing, np.ndarray, float]]:
    """Return each thing with its centre (x, y) and radius in pixels."""
    middle = np.full(2, SIZE_PX / 2)
    if scene.relation is None:
        thing = scene.things[0]
        spread = FREE_SPREAD_PX if thing.place is None else PLACE_SPREAD_PX
        centre = middle + PLACE_OFFSET_PX[thing.place] + rng.uniform(-spread, spread, 2)
        return [(thing, centre, rng.uniform(*RADIUS_PX[thing.size]))]
    step = PAIR_OFFSET_PX * np.array(RELATION_DIRECTION[scene.relation])
    return [
        (
            thing,
            middle + side * step + rng.uniform(-PAIR_SPREAD_PX, PAIR_SPREAD_PX, 2),
            rng.uniform(*PAIR_RADIUS_PX),
        )
        for thing, side in zip(scene.things, (1, -1), strict=True)
    ]


def _distance(shape: str, centre: np.ndarray, radius: float, size_px: int) -> np.ndarray:
    """Return each pixel's signed distance to a shape's edge, [size, size], negative inside."""
    at = np.arange(size_px, dtype=np.float32) + 0.5
    x, y = at[None, :] - centre[0], at[:, None] - centre[1]
    return _DISTANCE[shape](x, y, radius).astype(np.float32)


def _circle(x: np.ndarray, y: np.ndarray, radius: float) -> np.ndarray:
    return np.hypot(x, y) - radius


def _box(x: np.ndarray, y: np.ndarray, half_width: float, half_height: float) -> np.ndarray:
    return np.maximum(np.abs(x) - half_width, np.abs(y) - half_height)


def _square(x: np.ndarray, y: np.ndarray, radius: float) -> np.ndarray:
    return _box(x, y, radius, radius)


def _triangle(x: np.ndarray, y: np.ndarray, radius: float) -> np.ndarray:
    """Return the signed distance to a triangle with its apex at the top and sides of slope 2."""
    return np.maximum(y - radius, (2 * np.abs(x) - y - radius) / np.sqrt(5))


def _cross(x: np.ndarray, y: np.ndarray, radius: float) -> np.ndarray:
    arm = radius / 3
    return np.minimum(_box(x, y, radius, arm), _box(x, y, arm, radius))


_DISTANCE = {"circle": _circle, "square": _square, "triangle": _triangle, "cross": _cross}
_INKS = {**COLOURS, **NEW_COLOURS}


@functools.cache
def training_scenes() -> tuple[tuple[Scene, ...], tuple[Scene, ...]]:
    """Return the training scenes with one object, and those with two."""
    singles = tuple(scene for scene in one_object_scenes() if not scene.held_out)
    pairs = tuple(scene for scene in two_object_scenes() if not scene.held_out)
    return singles, pairs


@functools.cache
def held_out_scenes() -> tuple[tuple[Scene, ...], tuple[Scene, ...]]:
    """Return the held-out scenes with one object, and those with two."""
    singles = tuple(scene for scene in one_object_scenes() if scene.held_out)
    pairs = tuple(scene for scene in two_object_scenes() if scene.held_out)
    return singles, pairs


def random_scene(rng: np.random.Generator, pairs_share: float) -> Scene:
    """Return a random training scene, with two objects at probability `pairs_share`."""
    singles, pairs = training_scenes()
    pool = pairs if rng.random() < pairs_share else singles
    return pool[rng.integers(len(pool))]
