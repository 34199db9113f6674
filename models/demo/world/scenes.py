"""Draws the demo's scenes: shapes on a solid ground, edges smoothed over one pixel.

Shapes are solid, or outlines for the adapter that teaches these.

A solid shape fills the box [-radius, radius]² around its centre and is the set where a distance to
its outline, in pixels, is negative.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from models.demo.world.vocabulary import COLOURS, NEW_COLOURS, Scene, Thing

Cover = Callable[[np.ndarray], np.ndarray]
"""Function from pixels' distances to a shape's edge, negative inside, to how much of each pixel is
covered, 0 to 1."""

SIZE_PX = 96
"""Side of a picture."""
RADIUS_PX = {"small": (14.0, 18.0), "large": (23.0, 28.0), None: (14.0, 28.0)}
PAIR_RADIUS_PX = (12.0, 17.0)
STROKE_PX = 5.0
"""Width of an outline's stroke: the autoencoder breaks or tints thinner ones."""
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
    """Cover the whole shape."""
    return np.clip(0.5 - distance, 0, 1)


def outlined(distance: np.ndarray) -> np.ndarray:
    """Cover a stroke along the shape's edge, half of it on either side."""
    return solid(np.abs(distance) - STROKE_PX / 2)


def draw(scene: Scene, rng: np.random.Generator, cover: Cover = solid) -> np.ndarray:
    """Draw a scene, uint8 [96, 96, 3]; what the prompt leaves open is random."""
    picture = np.broadcast_to(
        np.array(COLOURS[scene.background], np.float32), (SIZE_PX, SIZE_PX, 3)
    )
    for thing, centre, radius in _layout(scene, rng):
        picture = painted(picture, thing, centre, radius, cover)
    return np.rint(picture).astype(np.uint8)


def painted(
    picture: np.ndarray, thing: Thing, centre: np.ndarray, radius: float, cover: Cover = solid
) -> np.ndarray:
    """A square picture, in 0 to 255, with a thing on it; `centre` is (x, y) in pixels."""
    covered = cover(_distance(thing.shape, centre, radius, len(picture)))[..., None]
    return picture + covered * (np.array(_INKS[thing.colour], np.float32) - picture)


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
    """Return each pixel's distance to a shape's edge, [size, size], negative inside."""
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
    """Apex up: the slanted sides fall two for each step aside."""
    return np.maximum(y - radius, (2 * np.abs(x) - y - radius) / np.sqrt(5))


def _cross(x: np.ndarray, y: np.ndarray, radius: float) -> np.ndarray:
    arm = radius / 3
    return np.minimum(_box(x, y, radius, arm), _box(x, y, arm, radius))


_DISTANCE = {"circle": _circle, "square": _square, "triangle": _triangle, "cross": _cross}
_INKS = {**COLOURS, **NEW_COLOURS}
