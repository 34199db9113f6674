"""Edits of the demo's scenes: an instruction, and the scene before and after it.

Something gets another colour, or its shape; where everything is and how large it is stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from models.demo.world.vocabulary import COLOURS, SHAPES, Scene


@dataclass(frozen=True)
class Edit:
    """Change of a scene."""

    before: Scene
    after: Scene
    instruction: str


def edits(scene: Scene) -> Iterator[Edit]:
    """Yield every edit of a scene, in a fixed order. Of two things of one shape only the ground's.

    No two things get one colour, and none the ground's.
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
