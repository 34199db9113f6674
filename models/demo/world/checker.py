"""Read a picture and say which of the things that its prompt names are right.

Knows the words and their colours, nothing of how scenes are drawn. Every pixel gets the nearest
colour of the palette, or none; connected pixels of one colour other than the ground's are an
object; an object's shape is the one whose outline, fitted into its box, overlaps it best.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from models.demo.world.vocabulary import COLOURS, NEW_COLOURS, SHAPES, Scene, Thing

COLOUR_LIMIT = 75.0
"""Farthest that a pixel may be from its colour, in RGB levels."""
MIN_AREA = 0.005
"""Smallest spot, as a share of the picture, that counts as an object."""
MIN_OVERLAP = 0.8
"""Minimum intersection over union with the shape's outline."""
GROWTHS = (0.0, 0.07, 0.14)
"""Growths of a spot's box, at each side, to find the box of its outline."""
SIZE_SPLIT = 0.427
"""A small object's box is narrower than this share of the picture, a large one's wider."""
PLACE_SPLIT = 0.08
"""Distance from the middle, as a share of the picture, from which a centre is left or right."""
MIDDLE_LIMIT = 0.08

Palette = Mapping[str, tuple[int, int, int]]
"""Colours by name."""


@dataclass(frozen=True)
class Found:
    """Object as the pixels show it; x and y in 0 to 1 from the upper left corner."""

    colour: str
    shape: str | None
    extent: float
    x: float
    y: float


@dataclass(frozen=True)
class Report:
    """Result of a check: which named things are right, by criterion.

    `background`, `count`, `colour`, `shape`, …
    """

    criteria: dict[str, bool]

    @property
    def correct(self) -> bool:
        """True if everything that the prompt names is right."""
        return all(self.criteria.values())


def check(pixels: np.ndarray, prompt: str) -> Report:
    """Hold a picture, uint8 [height, width, 3], against its prompt.

    Raises:
        ValueError: the prompt is not one of the demo's sentences.
    """
    scene = Scene.parse(prompt)
    ground, found = read(pixels, palette_of(scene))
    matched = _match(scene, found)
    pairs = list(zip(scene.things, matched, strict=True))
    criteria = {
        "background": ground == scene.background,
        "count": len(found) == len(scene.things),
        "colour": all(seen is not None for seen in matched),
        "shape": all(seen is not None and seen.shape == thing.shape for thing, seen in pairs),
    }
    if any(thing.size for thing in scene.things):
        criteria["size"] = all(seen is not None and _size(thing, seen) for thing, seen in pairs)
    if any(thing.place for thing in scene.things):
        criteria["place"] = all(seen is not None and _place(thing, seen) for thing, seen in pairs)
    if scene.relation:
        seen = [found for found in matched if found is not None]
        criteria["relation"] = len(seen) == 2 and _relation(scene.relation, seen[0], seen[1])
    return Report(criteria)


def palette_of(scene: Scene) -> Palette:
    """The models' colours, and of the new ones those that the scene names.

    Edges between two of the models' colours may look like a new one.
    """
    named = {thing.colour for thing in scene.things}
    return COLOURS | {name: NEW_COLOURS[name] for name in named & NEW_COLOURS.keys()}


def read(pixels: np.ndarray, palette: Palette = COLOURS) -> tuple[str | None, list[Found]]:
    """The ground's colour (that of most of the rim) and every object, largest first."""
    colours, names = nearest_colours(pixels, palette), list(palette)
    ground = ground_of(colours)
    if ground is None:
        return None, []
    spots = [
        (mask.sum(), _describe(mask, names[colour]))
        for colour in range(len(names))
        if colour != ground
        for mask in _spots(colours == colour)
    ]
    return names[ground], [found for _, found in sorted(spots, key=lambda spot: -spot[0])]


def ground_of(colours: np.ndarray) -> int | None:
    """Index into the palette of the colour of most of the rim; None where there is none."""
    rim = np.concatenate([colours[0], colours[-1], colours[:, 0], colours[:, -1]])
    counts = np.bincount(rim[rim >= 0], minlength=1)
    ground = int(counts.argmax())
    return ground if counts[ground] * 2 > rim.size else None


def nearest_colours(pixels: np.ndarray, palette: Palette) -> np.ndarray:
    """Index into the palette of every pixel, -1 where none is near."""
    inks = np.array(list(palette.values()), np.float32)
    gaps = np.linalg.norm(pixels[..., None, :].astype(np.float32) - inks, axis=-1)
    return np.where(gaps.min(-1) <= COLOUR_LIMIT, gaps.argmin(-1), -1)


def _spots(mask: np.ndarray) -> list[np.ndarray]:
    labels, count = ndimage.label(mask)
    spots = [labels == index + 1 for index in range(count)]
    return [spot for spot in spots if spot.mean() >= MIN_AREA]


def _describe(mask: np.ndarray, colour: str) -> Found:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    height, width = mask.shape
    return Found(
        colour,
        _shape(mask[top:bottom, left:right]),
        extent=float(max((bottom - top) / height, (right - left) / width)),
        x=float((left + right) / 2 / width),
        y=float((top + bottom) / 2 / height),
    )


def _shape(spot: np.ndarray) -> str | None:
    """The shape whose outline overlaps best, or None where none overlaps enough.

    Blunted tips leave a spot smaller than the shape it shows: where no outline fits the spot's
    own box, larger boxes are tried.
    """
    for growths in ((0.0,), GROWTHS):
        boxes = list(itertools.product(growths, repeat=3))
        overlaps = {name: max(_overlap(spot, name, *box) for box in boxes) for name in SHAPES}
        best = max(overlaps, key=lambda name: overlaps[name])
        if overlaps[best] >= MIN_OVERLAP:
            return best
    return None


def _overlap(spot: np.ndarray, shape: str, aside: float, up: float, down: float) -> float:
    """Intersection over union with an outline whose box is that much larger, as shares."""
    height, width = spot.shape
    margins = [
        round(share * size) for share, size in ((up, height), (down, height), (aside, width))
    ]
    box = np.pad(spot, (tuple(margins[:2]), (margins[2], margins[2])))
    outline = _outline(shape, *box.shape)
    return float((box & outline).sum() / (box | outline).sum())


@functools.cache
def _outline(shape: str, height: int, width: int) -> np.ndarray:
    """A shape filling a box of pixels."""
    v, u = np.meshgrid(
        (np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width, indexing="ij"
    )
    if shape == "circle":
        return (u - 0.5) ** 2 + (v - 0.5) ** 2 <= 0.25
    if shape == "triangle":
        return np.abs(u - 0.5) <= v / 2
    if shape == "cross":
        return (np.abs(u - 0.5) < 1 / 6) | (np.abs(v - 0.5) < 1 / 6)
    return np.ones((height, width), bool)


def _match(scene: Scene, found: list[Found]) -> list[Found | None]:
    """The object seen for each thing named: by colour, the largest where several share it."""
    return [
        next((seen for seen in found if seen.colour == thing.colour), None)
        for thing in scene.things
    ]


def _size(thing: Thing, seen: Found) -> bool:
    return thing.size is None or (seen.extent < SIZE_SPLIT) == (thing.size == "small")


def _place(thing: Thing, seen: Found) -> bool:
    aside, down = seen.x - 0.5, seen.y - 0.5
    return {
        None: True,
        "left": aside < -PLACE_SPLIT,
        "right": aside > PLACE_SPLIT,
        "top": down < -PLACE_SPLIT,
        "bottom": down > PLACE_SPLIT,
        "middle": max(abs(aside), abs(down)) < MIDDLE_LIMIT,
    }[thing.place]


def _relation(relation: str, first: Found, second: Found) -> bool:
    """True where the first lies in that direction, and farther so than in any other."""
    aside, down = first.x - second.x, first.y - second.y
    reach = {"above": -down, "below": down, "left": -aside, "right": aside}
    return max(reach, key=lambda name: reach[name]) == relation
