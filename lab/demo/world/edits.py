"""Edits of the demo's scenes: an instruction, and the scene before and after it.

An edit changes a colour or a shape, and preserves positions and sizes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from lab.demo.world.vocabulary import COLOURS, SHAPES, Scene


@dataclass(frozen=True)
class Edit:
    """Instruction that changes a scene, with the scene before and after it."""

    before: Scene
    after: Scene
    instruction: str


def edits(scene: Scene) -> Iterator[Edit]:
    """Yield every edit of a scene, in a fixed order.

    Scenes with two things of the same shape have only background edits. Colours remain distinct.
    """
    used = {scene.background, *(thing.colour for thing in scene.things)}
    free = [colour for colour in COLOURS if colour not in used]
    for colour in free:
        after = dataclasses.replace(scene, background=colour)
        yield Edit(scene, after, f"make the background {colour}")
    shapes = [thing.shape for thing in scene.things]
    if len(set(shapes)) < len(shapes):
        return
    for number, thing in enumerate(scene.things):
        of_thing = [
            (f"make the {thing.shape} {colour}", dataclasses.replace(thing, colour=colour))
            for colour in free
        ]
        of_thing += [
            (f"make the {thing.shape} a {shape}", dataclasses.replace(thing, shape=shape))
            for shape in SHAPES
            if shape not in shapes
        ]
        for instruction, changed in of_thing:
            things = (*scene.things[:number], changed, *scene.things[number + 1 :])
            yield Edit(scene, dataclasses.replace(scene, things=things), instruction)
