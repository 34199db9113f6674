"""Wan's pipelines for clips after other videos, ours beside diffusers'. Bounds as in `test_wan`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.wan.load import load
from models.wan.pipeline import WanPipeline
from tests import coarse
from tests.parity.programs import Programs
from tests.parity.test_wan import BASE, GREY_LEVELS, PSNR_DB, RELATIVE, Result, psnr_db
from tests.parity.test_wan_transformer import relative
from tests.parity.tiny_wan import Config, make_wan

Fields = Mapping[str, Any]


class WanPair:
    """One checkpoint, loaded by us and by diffusers.

    Args:
        config: of the checkpoint, for `make_wan`.
        kind: the pipeline that it must be.
        theirs: diffusers' class of the same.
    """

    def __init__(self, folder: Path, config: Config, kind: type[WanPipeline], theirs: Any) -> None:
        make_wan(folder, **config)
        with coarse.compiled():
            loaded = load("tiny", folder, "float32")
        assert isinstance(loaded, kind)
        self.ours, self.programs = loaded, Programs(loaded, coarse.OPTIONS)
        self.theirs = theirs.from_pretrained(folder)
        self.theirs.set_progress_bar_config(disable=True)

    def drawn_by_us(
        self, fields: Fields, files: Mapping[str, bytes], spoil: Callable[[Any], Any]
    ) -> Result:
        """Draw a request; `spoil` is what goes wrong with the row after encoding."""
        prepared = self.ours.prepare({**BASE, **fields}, files)
        return Result(*self.programs.drawn(prepared, spoil=spoil))

    def drawn_by_diffusers(self, given: Fields) -> Result:
        """Draw with diffusers' own arguments, and those that a request has, too."""
        arguments = {**given}
        generator = torch.Generator("cpu").manual_seed(arguments.pop("seed"))
        latents: list[np.ndarray] = []

        def keep(_pipe: Any, _step: int, _time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            latents.append(tensors["latents"][0].permute(1, 2, 3, 0).numpy().copy())
            return {}

        made = self.theirs(**arguments, generator=generator, callback_on_step_end=keep)
        return Result(latents, (made.frames[0] * 255).astype(np.uint8))


def off(ours: Result, theirs: Result, shape: tuple[int, ...]) -> tuple[float, float, int]:
    """Return the latents' largest relative difference, the frames' PSNR and levels.

    Args:
        shape: of the frames.
    """
    assert ours.frames.shape == theirs.frames.shape == shape
    assert len(ours.latents) == len(theirs.latents)
    worst = max(map(relative, ours.latents, theirs.latents))
    levels = int(np.abs(ours.frames.astype(int) - theirs.frames).max())
    return worst, psnr_db(ours.frames, theirs.frames), levels


def assert_the_same_clip(ours: Result, theirs: Result, shape: tuple[int, ...]) -> None:
    """But for rounding, and of a clip that is not flat."""
    latents, decibels, levels = off(ours, theirs, shape)
    print(f"latents {latents:.1e}, {decibels:.1f} dB, {levels}")
    assert latents <= RELATIVE
    assert decibels >= PSNR_DB
    assert levels <= GREY_LEVELS
    assert theirs.frames.std() > 10, "a flat video proves nothing"
