"""Sizes of an upscaler, derived from its weights' shapes, since its files have no config."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from models.checkpoint.folder import CheckpointError
from models.checkpoint.single_file import shapes_of

Shapes = Mapping[str, tuple[int, ...]]
COLOURS = 3
"""Channels of an image."""


class Style(NamedTuple):
    """Naming scheme of an RRDBNet's layers, as regular expressions."""

    first: str
    block: str
    dense: str
    """Suffix after a block: number of the dense block, number of its convolution."""
    body: str
    up: tuple[str, ...]
    high: str
    last: str


@dataclass(frozen=True)
class RrdbConfig:
    """Sizes of an RRDBNet upscaler's network.

    Raises:
        ValueError: an invalid value, by name.
    """

    blocks: int
    features: int
    growth: int
    """Channels that each convolution of a dense block adds."""
    doublings: int
    """Number of upsampling stages by a factor of two."""
    unshuffle: int
    """Side of the pixel squares that are converted to channels first."""

    def __post_init__(self) -> None:
        for name in ("blocks", "features", "growth", "unshuffle"):
            if getattr(self, name) < 1:
                raise ValueError(f"RRDBNet {name} must be at least 1, not {getattr(self, name)}")
        if 2**self.doublings % self.unshuffle:
            raise ValueError(
                f"RRDBNet enlarges {2**self.doublings} times what it has made {self.unshuffle} "
                "times smaller, which is not an integer scale"
            )

    @property
    def scale(self) -> int:
        """Scale of the output's sides."""
        return int(2**self.doublings) // self.unshuffle


def old_style(blocks: int, doublings: int) -> Style:
    """Return the naming scheme of ESRGAN's first files: indices in nested torch sequences.

    Source: xinntao's ESRGAN before 2020, which also counts layers without weights.
    """
    return Style(
        first=r"model\.0",
        block=r"model\.1\.sub\.(\d+)",
        dense=r"\.RDB(\d)\.conv(\d)\.0",
        body=rf"model\.1\.sub\.{blocks}",
        up=tuple(rf"model\.{3 * number + 3}" for number in range(doublings)),
        high=rf"model\.{3 * doublings + 2}",
        last=rf"model\.{3 * doublings + 4}",
    )


def new_style(doublings: int) -> Style:
    """Return the naming scheme of BasicSR, and of Real-ESRGAN's files."""
    return Style(
        first="conv_first",
        block=r"body\.(\d+)",
        dense=r"\.rdb(\d)\.conv(\d)",
        body="conv_body",
        up=tuple(f"conv_up{number + 1}" for number in range(doublings)),
        high="conv_hr",
        last="conv_last",
    )


def trunk_style(doublings: int) -> Style:
    """Return the naming scheme of ESRGAN's second files, and of BSRGAN's."""
    return Style(
        first="conv_first",
        block=r"RRDB_trunk\.(\d+)",
        dense=r"\.RDB(\d)\.conv(\d)",
        body="trunk_conv",
        up=tuple(f"upconv{number + 1}" for number in range(doublings)),
        high="HRconv",
        last="conv_last",
    )


class ReadSizes(NamedTuple):
    """Sizes of an RRDBNet, and the naming scheme of its file."""

    config: RrdbConfig
    style: Style
    prefix: str
    """Prefix of its keys: trainers store moving averages under a prefix."""


PREFIXES = ("params_ema.", "params.", "")
"""Possible prefixes of keys; the first one in the file is used."""


def read_shapes(file: Path) -> ReadSizes:
    """Derive an upscaler's sizes from a weight file.

    Raises: CheckpointError: pickled, damaged, or not an RRDBNet; contains the remedy.
    """
    shapes = shapes_of(file)
    for prefix in PREFIXES:
        prefixed = {k.removeprefix(prefix): v for k, v in shapes.items() if k.startswith(prefix)}
        if style := _style(prefixed):
            try:
                return ReadSizes(_config(prefixed, style), style, prefix)
            except (KeyError, ValueError) as error:
                raise CheckpointError(f"{file}: no RRDBNet that is served: {error}") from error
    raise CheckpointError(
        f"{file}: no RRDBNet, the network of ESRGAN and Real-ESRGAN: it has neither "
        "body.0.rdb1.conv1.weight nor model.1.sub.0.RDB1.conv1.0.weight"
    )


def _style(shapes: Shapes) -> Style | None:
    """Return the naming scheme of an upscaler's file; None: not an RRDBNet."""
    if "body.0.rdb1.conv1.weight" in shapes:
        return new_style(_count(shapes, r"conv_up(\d+)\.weight"))
    if "RRDB_trunk.0.RDB1.conv1.weight" in shapes:
        return trunk_style(_count(shapes, r"upconv(\d+)\.weight"))
    if "model.1.sub.0.RDB1.conv1.0.weight" in shapes:
        blocks = _count(shapes, r"model\.1\.sub\.(\d+)\.RDB1\.conv1\.0\.weight")
        last = _count(shapes, r"model\.(\d+)\.weight") - 1
        return old_style(blocks, last - 2)
    return None


def _count(shapes: Shapes, expression: str) -> int:
    """Count the distinct numbers that an expression captures in a file's keys."""
    return len({match[1] for key in shapes if (match := re.fullmatch(expression, key))})


def _config(shapes: Shapes, style: Style) -> RrdbConfig:
    """Derive an RRDBNet's sizes from shapes. Raises: KeyError, ValueError: unsupported."""
    features, channels = _shape(shapes, style.first)[:2]
    outputs = _shape(shapes, style.last)[0]
    if outputs != COLOURS:
        raise ValueError(f"it returns {outputs} channels; images have {COLOURS}")
    unshuffle = math.isqrt(channels // COLOURS)
    if unshuffle**2 * COLOURS != channels:
        raise ValueError(
            f"it reads {channels} channels, which are not a square of pixels of {COLOURS} colours"
        )
    growth = next(
        shape[0]
        for key, shape in shapes.items()
        if (match := re.fullmatch(rf"{style.block}{style.dense}\.weight", key))
        and match.groups()[1:] == ("1", "1")
    )
    blocks = _count(shapes, rf"{style.block}{style.dense}\.weight")
    return RrdbConfig(blocks, features, growth, len(style.up), unshuffle)


def _shape(shapes: Shapes, layer: str) -> tuple[int, ...]:
    return shapes[f"{layer}.weight".replace("\\", "")]
