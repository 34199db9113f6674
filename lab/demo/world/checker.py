"""Checks an image against its prompt, by criteria such as colour, shape and place.

The checker shares the vocabulary with the drawing code, and nothing else. Each pixel gets the
nearest palette colour, or none. Connected pixels of one colour, except the background's, form an
object. Its shape is the one whose outline, fitted into the bounding box, overlaps best.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from lab.demo.world.vocabulary import COLOURS, NEW_COLOURS, SHAPES, Scene, Thing

COLOUR_LIMIT = 75.0
"""Maximum distance of a pixel from its colour, in RGB levels."""
MIN_AREA = 0.005
"""Minimum area of an object, as a fraction of the image."""
MIN_OVERLAP = 0.8
"""Minimum intersection over union with the shape's outline."""
GROWTHS = (0.0, 0.07, 0.14)
"""Enlargements of a spot's bounding box, per side, when fitting outlines."""
SIZE_SPLIT = 0.427
"""Extent, as a fraction of the image, that separates small from large objects."""
PLACE_SPLIT = 0.08
"""Minimum distance from the middle to count as left or right, as a fraction of the image."""
MIDDLE_LIMIT = 0.08

Palette = Mapping[str, tuple[int, int, int]]
"""RGB colours by name."""


@dataclass(frozen=True)
class DetectedObject:
    """Detected object; x and y are 0 to 1 from the upper left corner."""

    colour: str
    shape: str | None
    extent: float
    x: float
    y: float


@dataclass(frozen=True)
class Report:
    """Result of a check: whether each criterion is met.

    Criteria are `background`, `count`, `colour`, `shape`, …
    """

    criteria: dict[str, bool]

    @property
    def correct(self) -> bool:
        """Return whether an image meets all criteria."""
        return all(self.criteria.values())


def check(pixels: np.ndarray, prompt: str) -> Report:
    """Check an image, uint8 [height, width, 3], against its prompt.

    Raises:
        ValueError: the prompt is not one of the demo's sentences.
    """
    scene = Scene.parse(prompt)
    ground, objects = read(pixels, palette_of(scene))
    matched = _match(scene, objects)
    pairs = list(zip(scene.things, matched, strict=True))
    criteria = {
        "background": ground == scene.background,
        "count": len(objects) == len(scene.things),
        "colour": all(item is not None for item in matched),
        "shape": all(item is not None and item.shape == thing.shape for thing, item in pairs),
    }
    if any(thing.size for thing in scene.things):
        criteria["size"] = all(item is not None and _size(thing, item) for thing, item in pairs)
    if any(thing.place for thing in scene.things):
        criteria["place"] = all(item is not None and _place(thing, item) for thing, item in pairs)
    if scene.relation:
        item = [objects for objects in matched if objects is not None]
        criteria["relation"] = len(item) == 2 and _relation(scene.relation, item[0], item[1])
    return Report(criteria)


def palette_of(scene: Scene) -> Palette:
    """Return the models' colours, and those new colours that the scene names.

    Other new colours are excluded, since edges between two colours may resemble them.
    """
    named = {thing.colour for thing in scene.things}
    return COLOURS | {name: NEW_COLOURS[name] for name in named & NEW_COLOURS.keys()}


def read(pixels: np.ndarray, palette: Palette = COLOURS) -> tuple[str | None, list[DetectedObject]]:
    """Return the background's colour (of most border pixels) and the objects, largest first."""
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
    return names[ground], [item for _, item in sorted(spots, key=lambda spot: -spot[0])]


def ground_of(colours: np.ndarray) -> int | None:
    """Return the palette index of the colour of most border pixels; None without a majority."""
    rim = np.concatenate([colours[0], colours[-1], colours[:, 0], colours[:, -1]])
    counts = np.bincount(rim[rim >= 0], minlength=1)
    ground = int(counts.argmax())
    return ground if counts[ground] * 2 > rim.size else None


def nearest_colours(pixels: np.ndarray, palette: Palette) -> np.ndarray:
    """Return the palette index of every pixel; -1 if no colour is near."""
    palette_colours = np.array(list(palette.values()), np.float32)
    distances = np.linalg.norm(pixels[..., None, :].astype(np.float32) - palette_colours, axis=-1)
    return np.where(distances.min(-1) <= COLOUR_LIMIT, distances.argmin(-1), -1)


def _spots(mask: np.ndarray) -> list[np.ndarray]:
    labels, count = ndimage.label(mask)
    spots = [labels == index + 1 for index in range(count)]
    return [spot for spot in spots if spot.mean() >= MIN_AREA]


def _describe(mask: np.ndarray, colour: str) -> DetectedObject:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    height, width = mask.shape
    return DetectedObject(
        colour,
        _shape(mask[top:bottom, left:right]),
        extent=float(max((bottom - top) / height, (right - left) / width)),
        x=float((left + right) / 2 / width),
        y=float((top + bottom) / 2 / height),
    )


def _shape(spot: np.ndarray) -> str | None:
    """Return the shape whose outline overlaps best; None if none overlaps enough.

    Blunted tips make a spot smaller than its shape. If no outline fits the spot's bounding box,
    larger boxes are tried.
    """
    for growths in ((0.0,), GROWTHS):
        boxes = list(itertools.product(growths, repeat=3))
        overlaps = {name: max(_overlap(spot, name, *box) for box in boxes) for name in SHAPES}
        best = max(overlaps, key=lambda name: overlaps[name])
        if overlaps[best] >= MIN_OVERLAP:
            return best
    return None


def _overlap(spot: np.ndarray, shape: str, across: float, up: float, down: float) -> float:
    """Return the IoU with an outline in the bounding box, enlarged by these fractions."""
    height, width = spot.shape
    margins = [
        round(share * size) for share, size in ((up, height), (down, height), (across, width))
    ]
    box = np.pad(spot, (tuple(margins[:2]), (margins[2], margins[2])))
    outline = _outline(shape, *box.shape)
    return float((box & outline).sum() / (box | outline).sum())


@functools.cache
def _outline(shape: str, height: int, width: int) -> np.ndarray:
    """Return the mask of a shape that fills a box of pixels."""
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


def _match(scene: Scene, objects: list[DetectedObject]) -> list[DetectedObject | None]:
    """Return the object detected for each named thing: by colour, the largest of several."""
    return [
        next((item for item in objects if item.colour == thing.colour), None)
        for thing in scene.things
    ]


def _size(thing: Thing, item: DetectedObject) -> bool:
    return thing.size is None or (item.extent < SIZE_SPLIT) == (thing.size == "small")


def _place(thing: Thing, item: DetectedObject) -> bool:
    across, down = item.x - 0.5, item.y - 0.5
    return {
        None: True,
        "left": across < -PLACE_SPLIT,
        "right": across > PLACE_SPLIT,
        "top": down < -PLACE_SPLIT,
        "bottom": down > PLACE_SPLIT,
        "middle": max(abs(across), abs(down)) < MIDDLE_LIMIT,
    }[thing.place]


def _relation(relation: str, first: DetectedObject, second: DetectedObject) -> bool:
    """Return whether the first is in this direction of the second, more than in any other."""
    across, down = first.x - second.x, first.y - second.y
    reach = {"above": -down, "below": down, "left": -across, "right": across}
    return max(reach, key=lambda name: reach[name]) == relation


MIN_HOLLOW = 0.1
"""Minimum fraction of the filled shape with the background's colour; small crosses
enclose little."""
GAP_PX = 2
"""Half the maximum gap of an outline that is closed before filling."""
INSET_PX = 2
"""Distance from a stroke's outer edge to its middle."""


def check_outlines(pixels: np.ndarray, prompt: str) -> Report:
    """Check an image of outlines, uint8 [height, width, 3], against its prompt.

    Raises:
        ValueError: the prompt is not one of the demo's sentences.
    """
    scene = Scene.parse(prompt)
    palette = palette_of(scene)
    colours = nearest_colours(pixels, palette)
    ground, filled, hollow = ground_of(colours), pixels.copy(), []
    for thing in scene.things:
        enclosed = _enclosed(colours == list(palette).index(thing.colour))
        hollow.append((enclosed & (colours == ground)).sum() >= MIN_HOLLOW * max(1, enclosed.sum()))
        filled[enclosed] = palette[scene.background]
        filled[ndimage.binary_erosion(enclosed, iterations=INSET_PX)] = palette[thing.colour]
    return Report({"outline": all(hollow), **check(filled, prompt).criteria})


def _enclosed(stroke: np.ndarray) -> np.ndarray:
    """Return the mask of a stroke and its interior."""
    closed = ndimage.binary_closing(np.pad(stroke, GAP_PX), iterations=GAP_PX)
    inner = slice(GAP_PX, -GAP_PX)
    return np.asarray(ndimage.binary_fill_holes(closed)[inner, inner])


def overlap(drawing: np.ndarray, original: np.ndarray) -> float:
    """Return the intersection over union of all objects; 0 if an image has no background.

    Args:
        drawing, original: uint8 [height, width, 3].
    """
    colours = [nearest_colours(pixels, COLOURS) for pixels in (drawing, original)]
    grounds = [ground_of(indices) for indices in colours]
    if None in grounds:
        return 0.0
    first, second = (indices != ground for indices, ground in zip(colours, grounds, strict=True))
    return float((first & second).sum() / max(1, (first | second).sum()))
